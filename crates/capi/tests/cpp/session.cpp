// The C++ wrapper: containers, codecs, exceptions, moves. Two ranks.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>
#include <list>
#include <map>
#include <set>
#include <sstream>

#include <orcheck_mpi.h>
#include <orcheck.hpp>

#include "../c/check.h"

namespace {

struct Cell {
  double value;
  std::int32_t level;
  std::int32_t parent;
};

class Throwing : public orcheck::Codec {
public:
  std::size_t size() override { return 10; }
  void pack(std::size_t, void *, std::size_t) override { throw std::runtime_error("no"); }
  void unpack(std::size_t, const void *, std::size_t) override {}
};

std::string options() { return test_options() ? test_options() : ""; }

template <class F> orc_status status_of(F call) {
  try {
    call();
  } catch (const orcheck::Error &error) {
    CHECK(error.what()[0] != 0);
    return error.status();
  }
  return ORC_OK;
}

static_assert(orcheck::dtype_of<double>() == ORC_F64, "");
static_assert(orcheck::dtype_of<const long>() == ORC_I64, "");
static_assert(orcheck::dtype_of<std::uint8_t>() == ORC_U8, "");
static_assert(orcheck::dtype_of<std::complex<double>>() == ORC_C128, "");
static_assert(orcheck::dtype_of<Cell>() == ORC_BYTES, "");
static_assert(!std::is_copy_constructible_v<orcheck::Session>, "");
static_assert(std::is_nothrow_move_constructible_v<orcheck::Session>, "");

struct State {
  std::vector<double> fixed;
  std::vector<Cell> cells;
  std::map<std::uint64_t, Cell> tree;
  std::list<std::int16_t> list;
  std::deque<float> deque;
  std::set<std::uint32_t> set;
  std::string text;
  std::vector<int> empty;
  double time = 0;

  void protect(orcheck::Session &s) {
    s.protect("fixed", fixed);
    s.protect_resizable("cells", cells);
    s.protect_resizable("tree", tree);
    s.protect_resizable("list", list);
    s.protect_resizable("deque", deque);
    s.protect_resizable("set", set);
    s.protect_resizable("text", text);
    s.protect_resizable("empty", empty);
    s.protect("time", time);
  }

  void fill(int rank, std::uint64_t step) {
    fixed.resize(1000);
    for (std::size_t i = 0; i < fixed.size(); i++) fixed[i] = element(rank, step, i);
    const int n = 100 * (rank + 1) + static_cast<int>(step);
    cells.clear(), tree.clear(), list.clear(), deque.clear(), set.clear();
    for (int i = 0; i < n; i++) {
      Cell cell{element(rank, step, static_cast<std::size_t>(i)), i, -i};
      cells.push_back(cell);
      tree[static_cast<std::uint64_t>(i) * 7919] = cell;
      list.push_back(static_cast<std::int16_t>(i));
      deque.push_back(static_cast<float>(i) / 2);
      set.insert(static_cast<std::uint32_t>(n - i));
    }
    text = "step " + std::to_string(step);
    time = static_cast<double>(step) / 10;
  }

  bool same(const State &o) const {
    auto cell = [](const Cell &a, const Cell &b) {
      return a.value == b.value && a.level == b.level && a.parent == b.parent;
    };
    if (cells.size() != o.cells.size() || tree.size() != o.tree.size()) return false;
    for (std::size_t i = 0; i < cells.size(); i++)
      if (!cell(cells[i], o.cells[i])) return false;
    for (const auto &[key, value] : tree)
      if (o.tree.count(key) == 0 || !cell(value, o.tree.at(key))) return false;
    return fixed == o.fixed && list == o.list && deque == o.deque && set == o.set &&
           text == o.text && empty == o.empty && time == o.time;
  }
};

/* Two lists that one rank has, dealt to all. */
void dealt(int rank, int ranks) {
  std::vector<std::uint32_t> id;
  std::vector<Cell> cells;
  if (rank == 0) {
    for (std::uint32_t i = 0; i < 101; i++) id.push_back(i), cells.push_back({i * 0.5, std::int32_t(i), 0});
    orcheck::Session s(MPI_COMM_SELF, "dealt", options());
    CHECK(!s.find());
    s.protect_list("id", id);
    s.protect_list("cells", cells);
    std::vector<double> pairs(2 * id.size(), 7.0);
    s.protect_list("pairs", pairs, {2});
    CHECK(status_of([&] { s.protect_list("pairs", pairs, {3}); }) == ORC_INVALID);
    s.checkpoint(1);
    s.close(30);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  orcheck::Session s(MPI_COMM_WORLD, "dealt", options());
  CHECK(s.find());
  const orc_array a = s.stored("cells");
  CHECK(a.global[0] == 101 && a.local[1] == sizeof(Cell) && a.dtype == ORC_BYTES);
  CHECK(s.stored("pairs").global[0] == 101 && s.stored("pairs").ndim == 2);
  std::vector<double> pairs(2 * static_cast<std::size_t>(s.stored("pairs").local[0]));
  s.protect_list("pairs", pairs, {2});
  const std::size_t n = static_cast<std::size_t>(a.local[0]);
  CHECK(n == (rank < 101 % ranks ? 1u : 0u) + 101u / static_cast<unsigned>(ranks));
  id.assign(n, 0), cells.assign(n, Cell{});
  s.protect_list("id", id.data(), n);
  s.protect_list("cells", cells);
  s.restart();
  for (std::size_t i = 0; i < n; i++) {
    const std::size_t at = static_cast<std::size_t>(a.offset[0]) + i;
    CHECK(id[i] == at && cells[i].value == static_cast<double>(at) * 0.5 && cells[i].level == std::int32_t(at));
  }
  s.close(30);
}

void save(int rank) {
  State state;
  orcheck::Session first(MPI_COMM_WORLD, "cpp", options());
  CHECK(!first.find());
  orcheck::Session s = std::move(first);
  CHECK(first.get() == nullptr);
  CHECK(status_of([&] { first.checkpoint(1); }) == ORC_INVALID);
  for (std::uint64_t step = 1; step <= 3; step++) {
    state.fill(rank, step);
    state.protect(s);
    s.checkpoint(step);
  }
  s.protect_codec("throwing", std::make_unique<Throwing>());
  s.checkpoint(4);
  CHECK(strstr(orc_message(), "checkpoint 4 will be lost"));
  CHECK(status_of([&] { s.wait(4, ORC_GLOBAL, 30); }) == ORC_UNAVAILABLE);
  s.unprotect("throwing");
  state.fill(rank, 3);
  s.checkpoint(5, ORC_GLOBAL);
  s.wait(5, ORC_GLOBAL, 30);
  CHECK(s.stats().step == 5);
  s.close(30);
  CHECK(status_of([&] { s.close(30); }) == ORC_INVALID);
}

void restore(int rank) {
  State state, expected;
  expected.fill(rank, 3);
  orcheck::Session s(MPI_COMM_WORLD, "cpp", options());
  auto found = s.find();
  CHECK(found && *found == 5);
  state.fixed.resize(static_cast<std::size_t>(s.stored("fixed").local[0]));
  state.empty = {1, 2, 3};
  state.protect(s);
  CHECK(s.restart() == 5);
  CHECK(state.same(expected));
  // Not closed: abandoned by the destructor.
}

/* Vectors whose size changes, and whose newest step is damaged: asked again, and at the older step. */
void resize(int rank) {
  std::vector<double> p;
  auto size = [&](std::uint64_t step) { return static_cast<std::size_t>(9000 + 100 * step); };
  auto make = [&](orcheck::Session &s, std::uint64_t step) {
    p.resize(size(step));
    for (std::size_t i = 0; i < p.size(); i++) p[i] = element(rank, step, i);
    s.protect("p", p);
    s.checkpoint(step);
  };
  {
    orcheck::Session s(MPI_COMM_WORLD, "resize", options());
    CHECK(!s.find());
    for (std::uint64_t step = 1; step <= 3; step++) make(s, step);
    s.close(30);
  }
  if (rank == 0) CHECK(std::system("sh \"$HERE/damage.sh\" resize") == 0);
  MPI_Barrier(MPI_COMM_WORLD);
  orcheck::Session s(MPI_COMM_WORLD, "resize", options());
  CHECK(s.find() == std::optional<std::uint64_t>(3));
  int asked = 0;
  auto prepare = [&] {
    p.resize(static_cast<std::size_t>(s.stored("p").local[0]));
    s.protect("p", p);
    asked++;
  };
  CHECK(s.restart(prepare) == 2 && asked == 2);
  for (std::size_t i = 0; i < size(2); i++) CHECK(p[i] == element(rank, 2, i));
  s.reject(2);
  CHECK(s.find() == std::optional<std::uint64_t>(1));
  CHECK(!s.find_step(ORC_EXACTLY, 2) && !s.find_step(ORC_OLDER_THAN, 1));
  CHECK(s.find_step(ORC_OLDER_THAN, 4) == std::optional<std::uint64_t>(1));
  p.resize(size(1));
  s.protect("p", p);
  CHECK(s.restart_region("p") && p[5] == element(rank, 1, 5));
  CHECK(s.restart(prepare) == 1);
  s.close(30);
}

/* What became of checkpoints is told to a function of the program; what it throws stays outside the library. */
void told(int rank) {
  std::vector<double> p(1000, rank);
  std::vector<std::string> lost;
  std::vector<std::uint64_t> safe;
  orcheck::Session first(MPI_COMM_WORLD, "told", options());
  first.watch([&](const orc_event &event) {
    if (event.kind == ORC_EVENT_SAFE) safe.push_back(event.step);
    else if (event.status == ORC_FENCED) lost.push_back(event.text);
    throw std::runtime_error("of the program");
  });
  orcheck::Session s(std::move(first));
  s.protect("p", p);
  CHECK(!s.safe_step(ORC_GLOBAL));
  s.checkpoint(1);
  s.wait(1, ORC_GLOBAL, 30);
  CHECK(safe == std::vector<std::uint64_t>{1});
  CHECK(s.safe_step(ORC_GLOBAL) == std::optional<std::uint64_t>(1));
  MPI_Barrier(MPI_COMM_WORLD);
  orcheck::Session other(MPI_COMM_WORLD, "told", options() + "\ntake_over = true");
  s.checkpoint(2);
  CHECK(status_of([&] { s.wait(2, ORC_GLOBAL, 30); }) == ORC_FENCED);
  CHECK(lost.size() == 1 && lost[0].find("checkpoint 2 is lost") != std::string::npos);
  s.watch({});
  CHECK(status_of([&] { s.checkpoint(3); }) == ORC_FENCED);
  CHECK(s.stats().lost_steps[ORC_GLOBAL][ORC_FENCED] == 1 && s.stats().lost_steps[ORC_GLOBAL][0] == 1);
  s.abandon();
  other.close(30);
}

/* All regions of a list, or none; one that was a container is flat memory from then on. Memory of the pool is lent. */
void lists() {
  std::vector<double> p(500, 1), q(100, 2);
  std::vector<double> flat(10, 3);
  {
    orcheck::Session s(MPI_COMM_WORLD, "lists", options());
    CHECK(status_of([&] {
            s.protect_all({{"p", p.data(), ORC_F64, p.size(), 0}, {"q", q.data(), 99, q.size(), 0}});
          }) == ORC_INVALID);
    CHECK(std::string(orc_message()).find("regions[1]: region \"q\": dtype") != std::string::npos);
    CHECK(status_of([&] {
            s.protect_all({{"p", p.data(), ORC_F64, p.size(), 0}, {"p", q.data(), ORC_F64, q.size(), 0}});
          }) == ORC_INVALID);
    CHECK(std::string(orc_message()).find("regions[0] and regions[1] have the same name, \"p\"") != std::string::npos);
    CHECK(status_of([&] { s.unprotect("p"); }) == ORC_NOT_FOUND);
    s.protect_resizable("q", q);
    s.protect_all({{"p", p.data(), ORC_F64, p.size(), 0}, {"q", flat.data(), ORC_F64, flat.size(), 0}});
    auto *pool = static_cast<double *>(s.alloc(1000 * sizeof(double)));
    for (std::size_t i = 0; i < 1000; i++) pool[i] = static_cast<double>(i);
    s.protect("pool", pool, 1000);
    s.request();
    CHECK(s.due(1) && !s.should_stop());
    s.lend("pool");
    s.checkpoint(1);
    CHECK(s.lent_done("pool", 30));
    s.unprotect("pool");
    s.free(pool);
    s.close(30);
  }
  std::vector<double> lent(1000);
  std::fill(flat.begin(), flat.end(), 0);
  orcheck::Session s(MPI_COMM_WORLD, "lists", options());
  CHECK(s.find() == std::optional<std::uint64_t>(1));
  CHECK(s.stored("p").local[0] == 500 && s.stored("q").local[0] == 10);
  s.protect_all({{"p", p.data(), ORC_F64, p.size(), 0},
                 {"q", flat.data(), ORC_F64, flat.size(), 0},
                 {"pool", lent.data(), ORC_F64, lent.size(), 0}});
  CHECK(s.restart() == 1 && flat[9] == 3 && lent[999] == 999);
  s.close(30);
}

/* Memory files as streams. */
void memory_files(int rank) {
  {
    orcheck::Session s(MPI_COMM_WORLD, "memory_files", options());
    CHECK(!s.find());
    CHECK(status_of([&] { orcheck::MemoryFile missing(s, "state", "r"); }) == ORC_NOT_FOUND);
    for (int step = 1; step <= 3; step++) {
      orcheck::MemoryFile out(s, "state", "w");
      CHECK(status_of([&] { s.checkpoint(1); }) == ORC_INVALID);
      out << "rank " << rank << '\n';
      for (int n = 0; n < 50000; n++) out << step * n << ' ';
      const auto end = out.tellp();
      out.seekp(5);
      out << rank + 1;
      out.seekp(end);
      out << "end";
      out.close();
      s.checkpoint(static_cast<std::uint64_t>(step));
    }
    s.close(30);
  }
  orcheck::Session s(MPI_COMM_WORLD, "memory_files", options());
  CHECK(s.find() && s.restart() == 3);
  orcheck::MemoryFile in(s, "state", "r");
  std::string word;
  int number = 0;
  CHECK(in >> word >> number && word == "rank" && number == rank + 1);
  for (int n = 0; n < 50000; n++) CHECK(in >> number && number == 3 * n);
  CHECK(in.get() == ' ' && in.unget() && in.get() == ' ');
  CHECK(in >> word && word == "end" && !(in >> word) && in.eof());
  in.close();
  s.close(30);
}

/* Files that the program writes itself; one of them is absent at the second step. */
void files(int rank) {
  auto put = [](const std::string &path, const std::string &text) { std::ofstream(path) << text; };
  auto got = [](const std::string &path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  const std::string mine = "mesh of rank " + std::to_string(rank);
  {
    orcheck::Session s(MPI_COMM_WORLD, "files", options());
    CHECK(!s.find());
    const std::string mesh = s.route("out/mesh"), rare = s.route("out/step/rare", ORC_OPTIONAL);
    put(mesh, mine);
    put(rare, "rare");
    s.checkpoint(1);
    CHECK(std::remove(rare.c_str()) == 0);
    s.checkpoint(2);
    CHECK(s.stats().routed_bytes >= mine.size());
    s.close(30);
    CHECK(!std::ifstream(mesh));
  }
  for (std::uint64_t step = 1; step <= 2; step++) {
    orcheck::Session s(MPI_COMM_WORLD, "files", options());
    CHECK(s.find_step(ORC_EXACTLY, step) == std::optional<std::uint64_t>(step));
    const std::string mesh = s.route("out/mesh"), rare = s.route("out/step/rare", ORC_OPTIONAL);
    put(rare, "of this run");
    CHECK(s.restart() == step && got(mesh) == mine);
    CHECK(step == 1 ? got(rare) == "rare" : !std::ifstream(rare));
    CHECK(status_of([&] { s.route("../out"); }) == ORC_INVALID);
    s.abandon();
  }
}

/* Without a directory, and with no options at all: the program runs without checkpoints, or hears what is missing. */
void without(int rank) {
  std::vector<double> p(1000, rank);
  {
    orcheck::Session s(MPI_COMM_WORLD, "without", "enabled = 'auto'");
    CHECK(rank != 0 || orcheck::warning().find("runs without checkpoints") != std::string::npos);
    s.protect("p", p);
    s.watch([](const orc_event &) { FAIL("nothing happens to checkpoints"); });
    CHECK(!s.find() && !s.find_step(ORC_OLDER_THAN, 5));
    for (std::uint64_t step = 1; step < 5; step++) {
      CHECK(!s.due(step) && !s.should_stop());
      s.checkpoint(step);
    }
    s.wait(4, ORC_GLOBAL, 1);
    CHECK(!s.safe_step(ORC_GLOBAL) && s.stats().disabled == 1);
    CHECK(status_of([&] { s.checkpoint(4); }) == ORC_INVALID);
    s.close(1);
  }
  const char *none = nullptr;
  for (int kind = 0; kind < 3; kind++)
    CHECK(status_of([&] {
            if (kind == 0) orcheck::Session s(MPI_COMM_WORLD, "without");
            if (kind == 1) orcheck::Session s(MPI_COMM_WORLD, "without", nullptr);
            if (kind == 2) orcheck::Session s(MPI_COMM_WORLD, "without", none);
          }) == ORC_INVALID);
  CHECK(std::string(orc_message()).find("no directory is configured") != std::string::npos);
  // Some with, some without.
  const std::string some = rank == 0 ? options() : "enabled = false";
  CHECK(status_of([&] { orcheck::Session s(MPI_COMM_WORLD, "without", some); }) == ORC_INVALID);
  CHECK(std::string(orc_message()).find("disabled on rank 1 and enabled on rank 0") != std::string::npos);
}

/* A job without a name has the one of the environment, as in C; without that it is an error of the library. */
void unnamed(int rank) {
  const char *none = nullptr;
  std::vector<double> p(10, rank);
  auto all = [&] {
    orcheck::Session s(MPI_COMM_WORLD, nullptr, options());
    s.protect("p", p);
    s.checkpoint(s.find().value_or(0) + 1);
    s.close(30);
  };
  CHECK(status_of(all) == ORC_INVALID && std::string(orc_message()).find("the job has no name") != std::string::npos);
  CHECK(status_of([] { orcheck::Session s(nullptr, nullptr); }) == ORC_INVALID);
  CHECK(status_of([&] { orcheck::Session s(none); }) == ORC_INVALID);
  CHECK(setenv("ORCHECK_JOB", "of-the-environment", 1) == 0);
  all();
  orcheck::Session s(MPI_COMM_WORLD, "of-the-environment", options());
  CHECK(s.find() == std::optional<std::uint64_t>(1));
  s.abandon();
  CHECK(unsetenv("ORCHECK_JOB") == 0);
}

} // namespace

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  try {
    CHECK(status_of([] { orcheck::Session s("a/b"); }) == ORC_INVALID);
    save(rank);
    restore(rank);
    resize(rank);
    told(rank);
    lists();
    dealt(rank, ranks);
    memory_files(rank);
    files(rank);
    without(rank);
    unnamed(rank);
  } catch (const std::exception &error) {
    FAIL("exception: %s", error.what());
  }
  MPI_Finalize();
  if (rank == 0) puts("cpp: ok");
  return 0;
}
