/**
 * @file orcheck.hpp
 * Orcheck for C++17: a session that closes itself, errors as exceptions, containers as regions.
 * Header-only, on top of orcheck.h; include orcheck_mpi.h (or mpi.h) first to get Session(MPI_Comm).
 *
 * @code
 * #include <orcheck_mpi.h>
 * #include <orcheck.hpp>
 *
 * orcheck::Session s(MPI_COMM_WORLD, "cavity", "global = [\"/scratch/me/ckpt\"]\nevery_s = 600");
 * std::vector<double> p(n);            // fixed size
 * std::map<int, Cell> cells;           // any size; struct Cell { double mass; std::int64_t id; }: no padding
 * std::uint64_t t = 0;
 * s.protect("p", p);
 * s.protect_resizable("cells", cells);
 * if (s.find()) t = s.restart();
 * while (t < T && !s.should_stop()) {
 *   advance(p, cells);
 *   t++;
 *   if (s.due(t)) s.checkpoint(t);
 * }
 * s.close(300);
 * @endcode
 *
 * A vector whose size changes, without the copy that protect_resizable() makes:
 *
 * @code
 * if (s.find()) t = s.restart([&] { p.resize(s.stored("p").local[0]); s.protect("p", p); });
 * @endcode
 *
 * A Session that is destroyed without close() is abandoned: what is committed stays, nothing is
 * waited for, and no exception is thrown.
 */
#ifndef ORCHECK_HPP
#define ORCHECK_HPP

#include "orcheck.h"

#include <cerrno>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <istream>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace orcheck {

/** A failed call: its status, and the text of orc_message(). */
class Error : public std::runtime_error {
public:
  Error(orc_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
  orc_status status() const noexcept { return status_; }

private:
  orc_status status_;
};

/** Throws for anything but ::ORC_OK. */
inline void check(orc_status status) {
  if (status != ORC_OK) throw Error(status, orc_message());
}

/** The orc_dtype of an element type; ::ORC_BYTES for structures. */
template <class T> constexpr int dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, bool>) return ORC_U8;
  else if constexpr (std::is_same_v<U, float>) return ORC_F32;
  else if constexpr (std::is_same_v<U, double>) return ORC_F64;
  else if constexpr (std::is_same_v<U, std::complex<float>>) return ORC_C64;
  else if constexpr (std::is_same_v<U, std::complex<double>>) return ORC_C128;
  else if constexpr (std::is_enum_v<U>) return dtype_of<std::underlying_type_t<U>>();
  else if constexpr (std::is_integral_v<U> && sizeof(U) <= 8) {
    constexpr int width = sizeof(U) == 1 ? 0 : sizeof(U) == 2 ? 1 : sizeof(U) == 4 ? 2 : 3;
    return (std::is_signed_v<U> ? ORC_I8 : ORC_U8) + width;
  } else return ORC_BYTES;
}

/**
 * State that is not flat memory. Exceptions thrown in these functions do not cross the library: one from
 * size() makes checkpoint() fail, one from unpack() makes restart() fail, and one from pack() loses that
 * checkpoint, which is reported like any other loss.
 */
class Codec {
public:
  virtual ~Codec() = default;
  /** How many bytes pack() will deliver now. */
  virtual std::size_t size() = 0;
  /** Writes bytes [at, at + len) of the stream to dst; at grows from 0. */
  virtual void pack(std::size_t at, void *dst, std::size_t len) = 0;
  /** Takes bytes [at, at + len) of the stream; at grows from 0. */
  virtual void unpack(std::size_t at, const void *src, std::size_t len) = 0;
};

namespace detail {

/* Elements that can be stored byte by byte: trivially copyable, or a pair of such (maps). */
template <class T> struct Element {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                "elements must be trivially copyable and no pointers; write an orcheck::Codec");
  using Plain = std::remove_cv_t<T>;
  static constexpr std::size_t bytes = sizeof(T);
  static void save(const T &value, unsigned char *to) { std::memcpy(to, &value, sizeof(T)); }
  static Plain load(const unsigned char *from) {
    alignas(Plain) unsigned char raw[sizeof(Plain)];
    std::memcpy(raw, from, sizeof(Plain));
    return *std::launder(reinterpret_cast<Plain *>(raw));
  }
};

template <class K, class V> struct Element<std::pair<K, V>> {
  using First = Element<std::remove_cv_t<K>>;
  using Second = Element<V>;
  using Plain = std::pair<std::remove_cv_t<K>, V>;
  static constexpr std::size_t bytes = First::bytes + Second::bytes;
  static void save(const std::pair<K, V> &value, unsigned char *to) {
    First::save(value.first, to);
    Second::save(value.second, to + First::bytes);
  }
  static Plain load(const unsigned char *from) {
    return Plain(First::load(from), Second::load(from + First::bytes));
  }
};

/* A container as a stream: the number of elements (8 bytes), then the elements. */
template <class Container> class ContainerCodec final : public Codec {
  using E = Element<typename Container::value_type>;
  static constexpr std::size_t head = sizeof(std::uint64_t);

public:
  explicit ContainerCodec(Container &container) : container_(container) {}

  std::size_t size() override {
    std::uint64_t count = static_cast<std::uint64_t>(
        std::distance(std::begin(container_), std::end(container_)));
    stream_.assign(head + static_cast<std::size_t>(count) * E::bytes, 0);
    std::memcpy(stream_.data(), &count, head);
    unsigned char *to = stream_.data() + head;
    for (const auto &value : container_) {
      E::save(value, to);
      to += E::bytes;
    }
    return stream_.size();
  }

  void pack(std::size_t at, void *dst, std::size_t len) override {
    if (at > stream_.size() || len > stream_.size() - at)
      throw std::out_of_range("pack beyond the container's stream");
    if (len > 0) std::memcpy(dst, stream_.data() + at, len);
    if (at + len == stream_.size()) std::vector<unsigned char>().swap(stream_);
  }

  void unpack(std::size_t at, const void *src, std::size_t len) override {
    if (at == 0) {
      rest_.clear();
      expected_ = 0;
      taken_ = 0;
      counted_ = false;
    }
    if (at != taken_) throw std::logic_error("unpack out of order");
    taken_ += len;
    const unsigned char *from = static_cast<const unsigned char *>(src);
    rest_.insert(rest_.end(), from, from + len);
    std::size_t used = 0;
    if (!counted_ && rest_.size() >= head) {
      std::memcpy(&expected_, rest_.data(), head);
      used = head;
      counted_ = true;
      built_ = Container();
    }
    for (; counted_ && expected_ > 0 && rest_.size() - used >= E::bytes; used += E::bytes) {
      built_.insert(built_.end(), E::load(rest_.data() + used));
      --expected_;
    }
    rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(used));
    if (counted_ && expected_ == 0) {
      if (!rest_.empty()) throw std::runtime_error("bytes after the last element");
      container_ = std::move(built_);
      built_ = Container();
      counted_ = false;
    }
  }

private:
  Container &container_;
  Container built_;
  std::vector<unsigned char> stream_, rest_;
  std::uint64_t expected_ = 0;
  std::size_t taken_ = 0;
  bool counted_ = false;
};

extern "C" {
inline int orcheck_hpp_size(void *ctx, std::size_t *len) noexcept {
  try {
    *len = static_cast<Codec *>(ctx)->size();
    return 0;
  } catch (...) {
    return 1;
  }
}
inline int orcheck_hpp_pack(void *ctx, std::size_t at, void *dst, std::size_t len) noexcept {
  try {
    static_cast<Codec *>(ctx)->pack(at, dst, len);
    return 0;
  } catch (...) {
    return 1;
  }
}
inline int orcheck_hpp_unpack(void *ctx, std::size_t at, const void *src,
                              std::size_t len) noexcept {
  try {
    static_cast<Codec *>(ctx)->unpack(at, src, len);
    return 0;
  } catch (...) {
    return 1;
  }
}
}

} // namespace detail

/** The options of a session: TOML text, or nullptr for those of the environment alone, as in C. */
class Options {
public:
  Options(const char *text = nullptr) noexcept : text_(text) {}
  Options(const std::string &text) noexcept : text_(text.c_str()) {}
  const char *c_str() const noexcept { return text_; }

private:
  const char *text_;
};

/** The name of a job, or nullptr for the one in the environment variable ORCHECK_JOB, as in C. */
class Job {
public:
  Job(const char *name) noexcept : name_(name) {}
  Job(const std::string &name) noexcept : name_(name.c_str()) {}
  const char *c_str() const noexcept { return name_; }

private:
  const char *name_;
};

/** One membership in a job. Movable, not copyable. Throws Error. */
class Session {
public:
  /** One rank, or the ranks of a collective of the program's own. [collective] */
  explicit Session(Job job, Options options = {}, const orc_collective *collective = nullptr) {
    check(orc_open(&session_, job.c_str(), collective, options.c_str()));
  }
  /* A literal nullptr is no communicator, although some MPIs have pointers for these. */
  explicit Session(std::nullptr_t, Options options = {}, const orc_collective *collective = nullptr)
      : Session(Job(nullptr), options, collective) {}

#ifdef ORCHECK_MPI_H
  /** The ranks of a communicator; see orc_mpi_open(). [collective] */
  Session(MPI_Comm comm, Job job, Options options = {}) {
    check(orc_mpi_open(&session_, comm, job.c_str(), options.c_str()));
  }
#endif

  Session(Session &&other) noexcept
      : session_(std::exchange(other.session_, nullptr)), codecs_(std::move(other.codecs_)),
        on_event_(std::move(other.on_event_)) {}
  Session &operator=(Session &&other) noexcept {
    if (this != &other) {
      orc_abandon(session_);
      session_ = std::exchange(other.session_, nullptr);
      codecs_ = std::move(other.codecs_);
      on_event_ = std::move(other.on_event_);
    }
    return *this;
  }
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;
  /** Abandons a session that was not closed. */
  ~Session() { orc_abandon(session_); }

  /** Waits until all is safe, and closes. The session is gone even when this throws. [collective] */
  void close(double timeout_s) { check(orc_close(std::exchange(session_, nullptr), timeout_s)); }
  void abandon() noexcept { orc_abandon(std::exchange(session_, nullptr)); }

  /** Flat memory. */
  template <class T>
  void protect(const std::string &name, T *address, std::size_t count, int flags = 0) {
    static_assert(std::is_trivially_copyable_v<T>, "use protect_resizable or protect_codec");
    constexpr int dtype = dtype_of<T>();
    constexpr std::size_t per = dtype == ORC_BYTES ? sizeof(T) : 1;
    check(orc_protect(session_, name.c_str(),
                      const_cast<void *>(static_cast<const volatile void *>(address)), dtype,
                      count * per, flags));
    codecs_.erase(name);
  }
  /**
   * A vector as it is now: call again when it has been resized or reallocated, and resize it with
   * stored() in what restart() is given. protect_resizable() does both by itself, for one more copy.
   */
  template <class T, class A>
  void protect(const std::string &name, std::vector<T, A> &vector, int flags = 0) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no flat memory");
    protect(name, vector.data(), vector.size(), flags);
  }
  /** One variable. A pointer or C array is given with its number of elements instead. */
  template <class T, class = std::enable_if_t<std::is_trivially_copyable_v<T> &&
                                              !std::is_pointer_v<T> && !std::is_array_v<T>>>
  void protect(const std::string &name, T &variable, int flags = 0) {
    protect(name, &variable, 1, flags);
  }
  /** This rank's part of a global array; address is that of its first element. */
  void protect(const std::string &name, void *address, const orc_array &array, int flags = 0) {
    check(orc_protect_array(session_, name.c_str(), address, &array, flags));
    codecs_.erase(name);
  }
  /** Several boxes of one global array as one region, such as block-cyclic parts; see orc_protect_boxes(). */
  void protect_boxes(const std::string &name, const std::vector<orc_box> &boxes, int flags = 0) {
    check(orc_protect_boxes(session_, name.c_str(), boxes.data(), boxes.size(), flags));
    codecs_.erase(name);
  }
  /**
   * This rank's items of a list: a restart redistributes the items of all ranks, to any number of ranks.
   * item_shape is that of one item, empty if it is one T; items counts items. See orc_protect_list().
   */
  template <class T>
  void protect_list(const std::string &name, T *address, std::size_t items,
                    std::initializer_list<std::int64_t> item_shape = {}, int flags = 0) {
    static_assert(std::is_trivially_copyable_v<T>, "items are stored as they lie in memory");
    constexpr int dtype = dtype_of<T>();
    std::vector<std::int64_t> shape(item_shape);
    if (dtype == ORC_BYTES) shape.push_back(sizeof(T));
    check(orc_protect_list(session_, name.c_str(),
                           const_cast<void *>(static_cast<const volatile void *>(address)), dtype,
                           shape.data(), static_cast<int>(shape.size()), items, flags));
    codecs_.erase(name);
  }
  /** A vector of items of one T each, as it is now. */
  template <class T, class A>
  void protect_list(const std::string &name, std::vector<T, A> &items, int flags = 0) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no flat memory");
    protect_list(name, items.data(), items.size(), {}, flags);
  }
  /** A vector whose items are several T each: {3} for three. */
  template <class T, class A>
  void protect_list(const std::string &name, std::vector<T, A> &vector,
                    std::initializer_list<std::int64_t> item_shape, int flags = 0) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no flat memory");
    std::size_t item = 1;
    for (std::int64_t len : item_shape) item *= static_cast<std::size_t>(len);
    if (item == 0 || vector.size() % item != 0)
      check(orc_refuse(ORC_INVALID, ("region '" + name + "': " + std::to_string(vector.size()) +
                                     " elements are no whole number of items of " + std::to_string(item)).c_str()));
    protect_list(name, vector.data(), vector.size() / item, item_shape, flags);
  }
  /** Several regions of flat memory, all or none (unless one is lent): {name, address, dtype, count, flags} each; see orc_protect_all(). */
  void protect_all(std::initializer_list<orc_region> regions) {
    check(orc_protect_all(session_, regions.begin(), regions.size()));
    for (const orc_region &region : regions) codecs_.erase(region.name);
  }
  /**
   * A container (vector, string, deque, list, set, map ...) of trivially copyable elements or pairs
   * of such. Its size is its own: it may change between checkpoints, and restart() sets it. The
   * container must not move while it is protected. Elements are stored as they lie in memory: what a
   * structure has between its fields (padding) is stored too, and `orcheck prove` may find that it differs.
   */
  template <class Container>
  void protect_resizable(const std::string &name, Container &container, int flags = 0) {
    protect_codec(name, std::make_unique<detail::ContainerCodec<Container>>(container), flags);
  }
  /** A codec of the program's own; the session keeps it. */
  void protect_codec(const std::string &name, std::unique_ptr<Codec> codec, int flags = 0) {
    orc_codec c{};
    c.struct_size = sizeof c;
    c.ctx = codec.get();
    c.size = detail::orcheck_hpp_size;
    c.pack = detail::orcheck_hpp_pack;
    c.unpack = detail::orcheck_hpp_unpack;
    auto &kept = codecs_[name];
    check(orc_protect_codec(session_, name.c_str(), &c, flags));
    kept = std::move(codec);
  }
  void unprotect(const std::string &name) {
    check(orc_unprotect(session_, name.c_str()));
    codecs_.erase(name);
  }

  /** Pool memory; see orc_alloc(). */
  void *alloc(std::size_t len_bytes) {
    void *address = nullptr;
    check(orc_alloc(session_, len_bytes, &address));
    return address;
  }
  void free(void *address) { check(orc_free(session_, address)); }

  /** Whether a checkpoint should be taken after this step. [collective] */
  bool due(std::uint64_t step) {
    int due = 0;
    check(orc_due(session_, step, &due));
    return due != 0;
  }
  /** Async-signal-safe. */
  void request(bool stop_after = false) noexcept { orc_request(session_, stop_after ? 1 : 0); }
  bool should_stop() const noexcept { return orc_should_stop(session_) != 0; }

  void lend(const std::string &name) { check(orc_lend(session_, name.c_str())); }
  /** false while still lent when timeout_s is over. */
  bool lent_done(const std::string &name, double timeout_s = 0) {
    orc_status status = orc_lent_done(session_, name.c_str(), timeout_s);
    if (status == ORC_UNAVAILABLE) return false;
    check(status);
    return true;
  }

  /** Returns when staged. [collective] */
  void checkpoint(std::uint64_t step) { check(orc_checkpoint(session_, step)); }
  /** The same for a checkpoint that goes at least to a level. [collective] */
  void checkpoint(std::uint64_t step, orc_level level) { check(orc_checkpoint_at(session_, step, level)); }
  void wait(std::uint64_t step, orc_level level, double timeout_s) {
    check(orc_wait(session_, step, level, timeout_s));
  }
  /** The newest step that is safe at a level, if any, without waiting. */
  std::optional<std::uint64_t> safe_step(orc_level level) const {
    std::uint64_t step = 0;
    orc_status status = orc_safe_step(session_, level, &step);
    if (status == ORC_NOT_FOUND) return std::nullopt;
    check(status);
    return step;
  }
  /** Registers a function that is told what becomes of checkpoints; an empty one ends that. It may not use the session,
      and what it throws is dropped. See orc_watch(). */
  void watch(std::function<void(const orc_event &)> on_event) {
    auto kept = on_event ? std::make_unique<OnEvent>(std::move(on_event)) : nullptr;
    auto call = [](void *ctx, const orc_event *event) noexcept {
      try {
        (*static_cast<OnEvent *>(ctx))(*event);
      } catch (...) {
      }
    };
    check(orc_watch(session_, kept ? static_cast<void (*)(void *, const orc_event *)>(call) : nullptr,
                    kept.get()));
    on_event_ = std::move(kept);
  }

  /** The newest committed step, or nothing for a fresh start. [collective] */
  std::optional<std::uint64_t> find() {
    std::uint64_t step = 0;
    orc_status status = orc_find(session_, &step);
    if (status == ORC_NOT_FOUND) return std::nullopt;
    check(status);
    return step;
  }
  /** Type, shape and (if asked) length of a region of the step found. */
  orc_array stored(const std::string &name, std::size_t *len_bytes = nullptr) {
    orc_array array{};
    array.struct_size = sizeof array;
    check(orc_stored(session_, name.c_str(), &array, len_bytes));
    return array;
  }
  /** The checkpoint of a step (::ORC_EXACTLY) or the newest older than it (::ORC_OLDER_THAN); nothing is not a fresh
      start. [collective] */
  std::optional<std::uint64_t> find_step(orc_which how, std::uint64_t step) {
    std::uint64_t found = 0;
    orc_status status = orc_find_step(session_, how, step, &found);
    if (status == ORC_NOT_FOUND) return std::nullopt;
    check(status);
    return found;
  }
  /** Never offers the checkpoint of this step again; see orc_reject(). [collective] */
  void reject(std::uint64_t step) { check(orc_reject(session_, step)); }
  /**
   * Fills the regions and returns the step actually restored. warning() says if that is an older one. Throws
   * an Error of status ::ORC_AGAIN when that one has other sizes. [collective]
   */
  std::uint64_t restart() {
    std::uint64_t step = 0;
    check(orc_restart(session_, &step));
    return step;
  }
  /**
   * The same for regions whose sizes change: prepare() asks stored() and protects what it says. It is
   * called again when an older step of other sizes has to be used. [collective]
   */
  template <class Prepare, class = std::enable_if_t<std::is_invocable_v<Prepare &>>>
  std::uint64_t restart(Prepare &&prepare) {
    for (;;) {
      prepare();
      std::uint64_t step = 0;
      orc_status status = orc_restart(session_, &step);
      if (status == ORC_AGAIN) continue;
      check(status);
      return step;
    }
  }
  /** Fills one region, before restart(); false: start over with stored(), see orc_restart_region(). [collective] */
  bool restart_region(const std::string &name) {
    orc_status status = orc_restart_region(session_, name.c_str());
    if (status == ORC_AGAIN) return false;
    check(status);
    return true;
  }
  /** Path of a file that the program writes itself; with ORC_OPTIONAL it may be absent, see orc_route_file(). */
  std::string route(const std::string &name, int flags = 0) {
    char path[4096];
    check(orc_route_file(session_, name.c_str(), flags, path, sizeof path));
    return path;
  }

  orc_stats stats() const {
    orc_stats stats{};
    stats.struct_size = sizeof stats;
    check(orc_stats_read(session_, &stats));
    return stats;
  }
  /** The C session, for functions not wrapped here. */
  orc_session *get() const noexcept { return session_; }

private:
  orc_session *session_ = nullptr;
  std::unordered_map<std::string, std::unique_ptr<Codec>> codecs_;
  using OnEvent = std::function<void(const orc_event &)>;
  std::unique_ptr<OnEvent> on_event_;
};

/**
 * A memory file as a stream; see orc_fopen(). Close it before the checkpoint; close() throws if something was
 * not written, the destructor does not.
 *
 * @code
 * orcheck::MemoryFile out(s, "state.txt", "w");
 * out << energy << '\n';
 * out.close();
 * s.checkpoint(t);
 * @endcode
 */
class MemoryFile : public std::iostream {
public:
  MemoryFile(const Session &session, const std::string &name, const char *mode)
      : std::iostream(nullptr), file_(session.get(), name, mode) {
    rdbuf(&file_);
  }
  /** Closes it; the following checkpoints store what it holds. */
  void close() {
    const bool wrote = !bad();
    file_.close(wrote);
  }

private:
  /* The C library has the buffer. */
  class File : public std::streambuf {
  public:
    File(orc_session *session, const std::string &name, const char *mode)
        : file_(orc_fopen(session, name.c_str(), mode)) {
      if (file_ == nullptr) fail();
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    ~File() override {
      if (file_ != nullptr) std::fclose(file_);
    }
    void close(bool wrote) {
      if (file_ == nullptr) return;
      const bool held = std::ferror(file_) == 0;
      const bool closed = std::fclose(file_) == 0;
      file_ = nullptr;
      if (!held || !closed) fail();
      if (!wrote) throw Error(ORC_INVALID, "the stream of a memory file is bad: not all was written or read");
    }

  protected:
    int_type overflow(int_type c) override {
      if (file_ == nullptr || traits_type::eq_int_type(c, traits_type::eof())) return traits_type::eof();
      return std::fputc(c, file_);
    }
    std::streamsize xsputn(const char *from, std::streamsize count) override {
      return file_ == nullptr ? 0 : static_cast<std::streamsize>(std::fwrite(from, 1, static_cast<std::size_t>(count), file_));
    }
    int_type underflow() override {
      const int_type c = uflow();
      if (!traits_type::eq_int_type(c, traits_type::eof())) std::ungetc(c, file_);
      return c;
    }
    int_type uflow() override { return file_ == nullptr ? traits_type::eof() : std::fgetc(file_); }
    int_type pbackfail(int_type c) override {
      if (file_ == nullptr) return traits_type::eof();
      if (!traits_type::eq_int_type(c, traits_type::eof())) return std::ungetc(c, file_);
      return std::fseek(file_, -1, SEEK_CUR) == 0 ? traits_type::not_eof(c) : traits_type::eof();
    }
    std::streamsize xsgetn(char *into, std::streamsize count) override {
      return file_ == nullptr ? 0 : static_cast<std::streamsize>(std::fread(into, 1, static_cast<std::size_t>(count), file_));
    }
    pos_type seekoff(off_type offset, std::ios_base::seekdir from, std::ios_base::openmode) override {
      const int whence = from == std::ios_base::beg ? SEEK_SET : from == std::ios_base::cur ? SEEK_CUR : SEEK_END;
      if (file_ == nullptr || std::fseek(file_, static_cast<long>(offset), whence) != 0) return pos_type(off_type(-1));
      return pos_type(off_type(std::ftell(file_)));
    }
    pos_type seekpos(pos_type at, std::ios_base::openmode mode) override {
      return seekoff(off_type(at), std::ios_base::beg, mode);
    }
    int sync() override { return file_ == nullptr ? 0 : std::fflush(file_); }

  private:
    [[noreturn]] static void fail() {
      const int code = errno;
      const orc_status status = code == ENOENT   ? ORC_NOT_FOUND
                                : code == EBUSY  ? ORC_UNAVAILABLE
                                : code == ENOSPC ? ORC_NO_SPACE
                                : code == EINVAL ? ORC_INVALID
                                                 : ORC_INTERNAL;
      throw Error(status, orc_message());
    }

    std::FILE *file_;
  };

  File file_;
};

/** The warning that the last successful call of this thread left, or "". */
inline std::string warning() { return orc_message(); }

} // namespace orcheck

#endif // ORCHECK_HPP
