#include "runtime/processes/socket_wire.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "models/error.h"
#include "models/file.h"

namespace pipelag {
namespace {

/// Before every message.
struct Header {
  uint32_t tag = 0;
  uint32_t reserved = 0;
  uint64_t size = 0;
};

/// What two processes tell each other when they meet; who speaks otherwise belongs to another run.
struct Greeting {
  char magic[8] = {'p', 'i', 'p', 'e', 'l', 'a', 'g', '1'};
  int32_t rank = 0;
  int32_t size = 0;
  int32_t port = 0;  // where the sender listens

  bool Fits(int of) const {
    return std::memcmp(magic, Greeting().magic, sizeof magic) == 0 && size == of && rank >= 0 &&
           rank < of;
  }
};

template <class T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
T ReadOne(const Socket& socket, Deadline deadline) {
  T value;
  ReadAll(socket, std::as_writable_bytes(std::span(&value, 1)), deadline);
  return value;
}

struct Outgoing {
  Wire::Handle handle = 0;
  Header header;
  std::span<const std::byte> bytes;
  size_t sent = 0;  // of header and bytes together
};

struct Wanted {
  Wire::Handle handle = 0;
  std::span<std::byte> bytes;
};

struct Peer {
  Socket socket;
  bool gone = false;
  std::deque<Outgoing> outgoing;
  std::map<int, std::deque<Wanted>> wanted;                 // by tag
  std::map<int, std::deque<std::vector<std::byte>>> early;  // came before they were wanted
  Header header;                                            // of the message that is coming in
  size_t received = 0;                                      // of header and bytes together
  std::vector<std::byte> aside;
};

class SocketWire : public Wire {
 public:
  SocketWire(int rank, std::vector<Peer> peers) : rank_(rank), peers_(std::move(peers)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string name() const override { return "sockets"; }

  Handle Send(int to, int tag, std::span<const std::byte> bytes) override {
    Peer& peer = peers_[static_cast<size_t>(to)];
    const Handle handle = Open(to);
    peer.outgoing.push_back({handle, {static_cast<uint32_t>(tag), 0, bytes.size()}, bytes});
    WriteTo(peer);
    return handle;
  }

  Handle Receive(int from, int tag, std::span<std::byte> bytes) override {
    Peer& peer = peers_[static_cast<size_t>(from)];
    const Handle handle = Open(from);
    auto& early = peer.early[tag];
    if (!early.empty() && peer.wanted[tag].empty()) {
      CHECK(early.front().size() == bytes.size());
      std::copy(early.front().begin(), early.front().end(), bytes.begin());
      early.pop_front();
      open_.erase(handle);
      done_.insert(handle);
    } else {
      peer.wanted[tag].push_back({handle, bytes});
    }
    return handle;
  }

  bool Done(Handle handle) override {
    Progress();
    if (done_.erase(handle) == 1) return true;
    const auto open = open_.find(handle);
    CHECK(open != open_.end());
    if (peers_[static_cast<size_t>(open->second)].gone) {
      throw PeerGone(open->second, "is gone: its connection was closed");
    }
    return false;
  }

  void Abandon() override {
    for (Peer& peer : peers_) peer.socket = Socket();
  }

 private:
  Handle Open(int peer) {
    open_[++last_] = peer;
    return last_;
  }

  void Finish(Handle handle) {
    open_.erase(handle);
    done_.insert(handle);
  }

  void Progress() {
    std::vector<pollfd> polled;
    std::vector<Peer*> of;
    for (Peer& peer : peers_) {
      if (peer.socket.descriptor() < 0 || peer.gone) continue;
      const short events = peer.outgoing.empty() ? POLLIN : POLLIN | POLLOUT;
      polled.push_back({peer.socket.descriptor(), events, 0});
      of.push_back(&peer);
    }
    if (poll(polled.data(), polled.size(), 0) <= 0) return;
    for (size_t i = 0; i < polled.size(); ++i) {
      if ((polled[i].revents & POLLOUT) != 0) WriteTo(*of[i]);
      if ((polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) ReadFrom(*of[i]);
    }
  }

  void WriteTo(Peer& peer) {
    while (!peer.outgoing.empty() && !peer.gone) {
      Outgoing& message = peer.outgoing.front();
      const auto header = BytesOf(message.header);
      const auto rest = message.sent < header.size()
                            ? header.subspan(message.sent)
                            : message.bytes.subspan(message.sent - header.size());
      if (!rest.empty()) {
        const ssize_t sent = send(peer.socket.descriptor(), rest.data(), rest.size(), MSG_NOSIGNAL);
        if (sent < 0) {
          peer.gone = errno != EAGAIN && errno != EINTR;
          return;
        }
        message.sent += static_cast<size_t>(sent);
      }
      if (message.sent == header.size() + message.bytes.size()) {
        Finish(message.handle);
        peer.outgoing.pop_front();
      }
    }
  }

  /// Where the rest of what comes in belongs.
  std::span<std::byte> Target(Peer& peer) {
    if (peer.received < sizeof(Header)) {
      return std::as_writable_bytes(std::span(&peer.header, 1)).subspan(peer.received);
    }
    const size_t done = peer.received - sizeof(Header);
    auto& wanted = peer.wanted[static_cast<int>(peer.header.tag)];
    // Once a message has begun to be put aside it stays there.
    if (peer.aside.empty() && !wanted.empty()) {
      CHECK(wanted.front().bytes.size() == peer.header.size);
      return wanted.front().bytes.subspan(done);
    }
    peer.aside.resize(peer.header.size);
    return std::span(peer.aside).subspan(done);
  }

  void ReadFrom(Peer& peer) {
    for (;;) {
      const std::span<std::byte> target = Target(peer);
      if (!target.empty()) {
        const ssize_t got = recv(peer.socket.descriptor(), target.data(), target.size(), 0);
        if (got <= 0) {
          peer.gone = got == 0 || (errno != EAGAIN && errno != EINTR);
          return;
        }
        peer.received += static_cast<size_t>(got);
      }
      if (peer.received < sizeof(Header) || peer.received < sizeof(Header) + peer.header.size) {
        continue;
      }
      Arrived(peer);
    }
  }

  void Arrived(Peer& peer) {
    const int tag = static_cast<int>(peer.header.tag);
    auto& wanted = peer.wanted[tag];
    if (wanted.empty()) {
      peer.early[tag].push_back(std::move(peer.aside));
    } else {
      if (!peer.aside.empty()) {
        CHECK(peer.aside.size() == wanted.front().bytes.size());
        std::copy(peer.aside.begin(), peer.aside.end(), wanted.front().bytes.begin());
      }
      Finish(wanted.front().handle);
      wanted.pop_front();
    }
    peer.aside.clear();
    peer.received = 0;
  }

  int rank_;
  std::vector<Peer> peers_;
  Handle last_ = 0;
  std::map<Handle, int> open_;  // its peer
  std::set<Handle> done_;
};

std::string Missing(const std::vector<Peer>& peers, int own) {
  std::vector<int> missing;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    if (static_cast<int>(rank) != own && peers[rank].socket.descriptor() < 0) {
      missing.push_back(static_cast<int>(rank));
    }
  }
  return fmt::format("rank {} has heard nothing of rank{} {}", own, missing.size() > 1 ? "s" : "",
                     fmt::join(missing, ", "));
}

/// Takes calls until all ranks from `first` on are there; says where each of them listens.
std::vector<Address> TakeCalls(const Socket& listener, int own, size_t first,
                               std::vector<Peer>& peers, Deadline deadline) {
  std::vector<Address> addresses(peers.size());
  for (size_t left = peers.size() - first; left > 0;) {
    Socket socket = Accept(listener, deadline);
    if (socket.descriptor() < 0) throw Error(Missing(peers, own));
    Greeting greeting;
    try {
      greeting = ReadOne<Greeting>(
          socket, std::min(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(5)));
    } catch (const Error&) {
      continue;  // whoever that was, it is none of ours
    }
    if (!greeting.Fits(static_cast<int>(peers.size()))) continue;
    Peer& peer = peers[static_cast<size_t>(greeting.rank)];
    if (static_cast<size_t>(greeting.rank) < first || peer.socket.descriptor() >= 0) {
      throw Error(fmt::format("two processes say that they are rank {}", greeting.rank));
    }
    addresses[static_cast<size_t>(greeting.rank)] = PeerAddress(socket, greeting.port);
    peer.socket = std::move(socket);
    --left;
  }
  return addresses;
}

/// How ranks find rank 0.
struct Meeting {
  int port = 0;                                        ///< rank 0's; 0: any that is free
  std::function<void(int port)> announce = {};         ///< by rank 0
  std::function<Socket(Deadline deadline)> call = {};  ///< by the others
  std::string where;
};

std::unique_ptr<Wire> OpenMeeting(int rank, int size, const Meeting& meeting,
                                  std::chrono::seconds patience) {
  const Deadline deadline = std::chrono::steady_clock::now() + patience;
  std::vector<Peer> peers(static_cast<size_t>(size));
  if (size == 1) return std::make_unique<SocketWire>(rank, std::move(peers));
  const Socket listener = Listen(rank == 0 ? meeting.port : 0);
  Greeting own;
  own.rank = rank;
  own.size = size;
  own.port = PortOf(listener);
  if (rank == 0) {
    if (meeting.announce) meeting.announce(own.port);
    const std::vector<Address> addresses = TakeCalls(listener, 0, 1, peers, deadline);
    for (size_t r = 1; r < peers.size(); ++r) {
      WriteAll(peers[r].socket, std::as_bytes(std::span(addresses)), deadline);
    }
    return std::make_unique<SocketWire>(rank, std::move(peers));
  }
  peers[0].socket = meeting.call(deadline);
  if (peers[0].socket.descriptor() < 0) {
    throw Error(fmt::format("rank {} cannot reach rank 0 at {} within {} s", rank, meeting.where,
                            patience.count()));
  }
  std::vector<Address> addresses(peers.size());
  try {
    WriteAll(peers[0].socket, BytesOf(own), deadline);
    ReadAll(peers[0].socket, std::as_writable_bytes(std::span(addresses)), deadline);
  } catch (const Error& error) {
    throw Error(fmt::format("rank {} waits for rank 0 to bring all ranks together: {}", rank,
                            error.what()));
  }
  for (size_t r = 1; r < static_cast<size_t>(rank); ++r) {
    peers[r].socket = Connect(addresses[r], deadline);
    if (peers[r].socket.descriptor() < 0) throw Error(Missing(peers, rank));
    WriteAll(peers[r].socket, BytesOf(own), deadline);
  }
  TakeCalls(listener, rank, static_cast<size_t>(rank) + 1, peers, deadline);
  return std::make_unique<SocketWire>(rank, std::move(peers));
}

}  // namespace

std::unique_ptr<Wire> OpenSocketWire(int rank, int size, const std::string& host, int port,
                                     std::chrono::seconds patience) {
  Meeting meeting;
  meeting.port = port;
  meeting.call = [&](Deadline deadline) { return Connect(host, port, deadline); };
  meeting.where = fmt::format("{}:{}", host, port);
  return OpenMeeting(rank, size, meeting, patience);
}

std::unique_ptr<Wire> OpenSocketWire(int rank, int size, const std::filesystem::path& file,
                                     std::chrono::seconds patience) {
  Meeting meeting;
  meeting.announce = [&](int port) {
    char host[256] = {};
    if (gethostname(host, sizeof host - 1) != 0) throw Error("this host has no name");
    WriteFile(file, fmt::format("{} {}\n", host, port));
  };
  meeting.call = [&](Deadline deadline) {
    // Anew each time: what an earlier run has left is replaced at some time.
    while (std::chrono::steady_clock::now() < deadline) {
      std::string host;
      int port = 0;
      if (std::ifstream in(file); in >> host >> port) {
        const Deadline soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        Socket socket = Connect(host, port, std::min(soon, deadline));
        if (socket.descriptor() >= 0) return socket;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return Socket();
  };
  meeting.where = fmt::format("the place that {} names", file.string());
  std::unique_ptr<Wire> wire = OpenMeeting(rank, size, meeting, patience);
  std::error_code gone;
  if (rank == 0) std::filesystem::remove(file, gone);
  return wire;
}

std::unique_ptr<Wire> WireOver(int rank, std::vector<Socket> sockets) {
  std::vector<Peer> peers(sockets.size());
  for (size_t r = 0; r < peers.size(); ++r) peers[r].socket = std::move(sockets[r]);
  return std::make_unique<SocketWire>(rank, std::move(peers));
}

}  // namespace pipelag
