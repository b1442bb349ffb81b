// A burst of checkpoints in SimGrid, to check the contention model of crates/plan against another simulator.
//
// What it does: reads one case a line from standard input (see `Case`), simulates it with SimGrid's own network and disks,
// and prints for each its name and the seconds until everything is written. Written from docs/contention.md, not from the
// model's source: actors that send, receive, write and answer, instead of an event loop.
//
// How: a node and a server each hang on one link, and a route is both links: SimGrid shares them max-min fairly. Its corrections
// for TCP (a factor of 0.97, latency, window) are off: the model has none. A server has one actor for its disk, which takes
// whole requests one after the other.
//
// Not here: seeks (SimGrid's disks have none), command queues, page caches, staging.
//
// Build: g++ -std=c++17 -O1 burst.cpp -lsimgrid. SimGrid 3.32 is packaged as libsimgrid-dev.
#include <simgrid/s4u.hpp>

#include <cstdint>
#include <cstdio>
#include <deque>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace sg4 = simgrid::s4u;

// One line: name mode nodes ranks_per_node servers bytes_per_rank request_bytes in_flight at_once node_rate server_rate disk_rate
// latency. Rates in bytes a second, latency in seconds one way; at_once counts only in mode orchestrated.
struct Case {
  std::string name, mode;
  int nodes = 0, ranks = 0, servers = 0, in_flight = 0, at_once = 0;
  uint64_t bytes = 0, request = 0;
  double node_rate = 0, server_rate = 0, disk_rate = 0, latency = 0;
};

// What goes one after the other from one node into one file of one server.
struct Stream {
  int node = 0, server = 0;
  uint64_t bytes = 0;
  sg4::SemaphorePtr window; // requests that may be in flight
};

// A request as it arrives; no pointer means that a stream has sent its last one.
struct Request {
  Stream* stream;
  uint64_t bytes;
};

// What a server holds: requests that wait for its disk.
struct Store {
  std::deque<Request*> waiting;
  sg4::SemaphorePtr filled;
};

static std::vector<std::unique_ptr<Stream>> streams_of(const Case& c) {
  std::vector<std::unique_ptr<Stream>> streams;
  auto add = [&](int node, int server, uint64_t bytes, int window) {
    if (bytes == 0) return;
    auto stream = std::make_unique<Stream>();
    stream->node = node;
    stream->server = server;
    stream->bytes = bytes;
    stream->window = sg4::Semaphore::create(window);
    streams.push_back(std::move(stream));
  };
  for (int node = 0; node < c.nodes; node++) {
    if (c.mode == "orchestrated") {
      add(node, node % c.servers, c.bytes * c.ranks, c.in_flight);
      continue;
    }
    for (int rank = 0; rank < c.ranks; rank++) {
      if (c.mode == "vertical") {
        add(node, node % c.servers, c.bytes, c.in_flight);
        continue;
      }
      std::vector<uint64_t> parts(c.servers, 0);
      int server = (node * c.ranks + rank) % c.servers;
      for (uint64_t left = c.bytes; left > 0; server = (server + 1) % c.servers) {
        uint64_t part = std::min(left, c.request);
        parts[server] += part;
        left -= part;
      }
      for (int at = 0; at < c.servers; at++) add(node, at, parts[at], c.in_flight);
    }
  }
  return streams;
}

static double simulate(const Case& c, char* program) {
  int argc = 1;
  char* argv[] = {program, nullptr};
  sg4::Engine engine(&argc, argv);
  // Plain max-min sharing: without the factors by which SimGrid imitates a TCP stack.
  sg4::Engine::set_config("network/model:CM02");
  sg4::Engine::set_config("network/TCP-gamma:0");
  sg4::Engine::set_config("network/crosstraffic:0");
  auto* zone = sg4::create_full_zone("cluster");
  std::vector<sg4::Host*> nodes, servers;
  std::vector<sg4::Link*> up, down;
  std::vector<sg4::Disk*> disks;
  for (int i = 0; i < c.nodes; i++) {
    auto name = "node" + std::to_string(i);
    nodes.push_back(zone->create_host(name, 1e9));
    up.push_back(zone->create_link("link-" + name, c.node_rate)->set_latency(c.latency)->seal());
  }
  for (int i = 0; i < c.servers; i++) {
    auto name = "server" + std::to_string(i);
    servers.push_back(zone->create_host(name, 1e9));
    down.push_back(zone->create_link("link-" + name, c.server_rate)->set_latency(0)->seal());
    disks.push_back(servers[i]->create_disk("disk-" + name, c.disk_rate, c.disk_rate)->seal());
  }
  for (int i = 0; i < c.nodes; i++)
    for (int j = 0; j < c.servers; j++)
      zone->add_route(nodes[i]->get_netpoint(), servers[j]->get_netpoint(), nullptr, nullptr,
                      {sg4::LinkInRoute(up[i]), sg4::LinkInRoute(down[j])}, true);
  zone->seal();

  auto streams = streams_of(c);
  std::vector<Store> stores(c.servers);
  std::vector<sg4::SemaphorePtr> turns;
  std::vector<uint64_t> expected(c.servers, 0);
  for (auto& store : stores) {
    store.filled = sg4::Semaphore::create(0);
    turns.push_back(sg4::Semaphore::create(c.mode == "orchestrated" ? c.at_once : 1 << 20));
  }
  double last = 0;
  for (size_t i = 0; i < streams.size(); i++) {
    Stream* stream = streams[i].get();
    expected[stream->server] += stream->bytes;
    auto* box = sg4::Mailbox::by_name("stream" + std::to_string(i));
    auto turn = turns[stream->server];
    auto* store = &stores[stream->server];
    sg4::Actor::create("send", nodes[stream->node], [stream, box, turn, &c] {
      turn->acquire();
      for (uint64_t left = stream->bytes; left > 0;) {
        uint64_t bytes = std::min(left, c.request);
        stream->window->acquire();
        box->put(new Request{stream, bytes}, bytes);
        left -= bytes;
      }
      turn->release();
    });
    sg4::Actor::create("receive", servers[stream->server], [stream, box, store] {
      for (uint64_t left = stream->bytes; left > 0;) {
        auto* request = box->get<Request>();
        left -= request->bytes;
        store->waiting.push_back(request);
        store->filled->release();
      }
    });
  }
  for (int i = 0; i < c.servers; i++) {
    auto* store = &stores[i];
    sg4::Actor::create("write", servers[i], [store, disk = disks[i], bytes = expected[i], &last, &c] {
      for (uint64_t left = bytes; left > 0;) {
        store->filled->acquire();
        std::unique_ptr<Request> request(store->waiting.front());
        store->waiting.pop_front();
        disk->write(request->bytes);
        left -= request->bytes;
        last = sg4::Engine::get_clock() + c.latency;
        // The answer is on its way while the disk continues.
        auto window = request->stream->window;
        if (c.latency > 0) {
          sg4::Actor::create("answer", sg4::this_actor::get_host(), [window, &c] {
            sg4::this_actor::sleep_for(c.latency);
            window->release();
          });
        } else {
          window->release();
        }
      }
    });
  }
  engine.run();
  return last;
}

int main(int, char** argv) {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    Case c;
    std::istringstream in(line);
    in >> c.name >> c.mode >> c.nodes >> c.ranks >> c.servers >> c.bytes >> c.request >> c.in_flight >> c.at_once >>
        c.node_rate >> c.server_rate >> c.disk_rate >> c.latency;
    if (!in || (c.mode != "traditional" && c.mode != "vertical" && c.mode != "orchestrated")) {
      std::cerr << "cannot read the case: " << line << "\n";
      return 2;
    }
    // SimGrid's engine exists once in a process: each case has one of its own.
    std::fflush(stdout);
    pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      std::printf("%s %.9f\n", c.name.c_str(), simulate(c, argv[0]));
      std::fflush(stdout);
      _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
      std::cerr << c.name << ": the simulation failed\n";
      return 1;
    }
  }
  return 0;
}
