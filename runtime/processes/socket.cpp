#include "runtime/processes/socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "models/error.h"

namespace pipelag {
namespace {

[[noreturn]] void Fail(std::string_view what) {
  throw Error(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// Nothing that this process does with the socket shall block, and small messages shall leave at
/// once.
Socket Prepared(int descriptor) {
  Socket socket(descriptor);
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0) Fail("fcntl");
  constexpr int kOn = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
  return socket;
}

/// False at the deadline.
bool WaitFor(int descriptor, short events, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd wanted{descriptor, events, 0};
    const int ready = poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left.count(), 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) Fail("poll");
  }
}

/// An unconnected socket if nobody listens there, or not yet.
Socket TryConnect(const sockaddr* at, socklen_t length, Deadline deadline) {
  const int descriptor = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) Fail("socket");
  Socket connecting = Prepared(descriptor);
  if (connect(descriptor, at, length) != 0) {
    if (errno != EINPROGRESS || !WaitFor(descriptor, POLLOUT, deadline)) return {};
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return {};
  }
  return IsConnectedToItself(connecting) ? Socket() : std::move(connecting);
}

template <class Try>
Socket Persist(Try attempt, Deadline deadline) {
  constexpr std::chrono::milliseconds kPause{20};
  for (;;) {
    Socket socket = attempt();
    if (socket.descriptor() >= 0 || std::chrono::steady_clock::now() >= deadline) return socket;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

bool IsConnectedToItself(const Socket& socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof own;
  socklen_t peer_size = sizeof peer;
  return getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         own_size == peer_size && std::memcmp(&own, &peer, own_size) == 0;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Socket Listen(int port) {
  const int descriptor = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  constexpr int kOn = 1;
  constexpr int kOff = 0;
  Socket listener;
  int bound = -1;
  if (descriptor >= 0) {
    listener = Prepared(descriptor);
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn);
    setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &kOff, sizeof kOff);
    sockaddr_in6 at{};
    at.sin6_family = AF_INET6;
    at.sin6_port = htons(static_cast<uint16_t>(port));
    bound = bind(descriptor, reinterpret_cast<const sockaddr*>(&at), sizeof at);
  } else {  // a host without IPv6
    const int plain = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (plain < 0) Fail("socket");
    listener = Prepared(plain);
    setsockopt(plain, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    bound = bind(plain, reinterpret_cast<const sockaddr*>(&at), sizeof at);
  }
  if (bound != 0) Fail(fmt::format("cannot listen on port {}", port));
  if (listen(listener.descriptor(), SOMAXCONN) != 0) Fail("listen");
  return listener;
}

int PortOf(const Socket& listener) {
  Address own;
  own.length = sizeof own.at;
  if (getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&own.at), &own.length) != 0) {
    Fail("getsockname");
  }
  return ntohs(own.at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own.at)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&own.at)->sin_port);
}

Address PeerAddress(const Socket& socket, int port) {
  Address peer;
  peer.length = sizeof peer.at;
  if (getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&peer.at), &peer.length) != 0) {
    Fail("getpeername");
  }
  const auto number = htons(static_cast<uint16_t>(port));
  if (peer.at.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&peer.at)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(&peer.at)->sin_port = number;
  }
  return peer;
}

Socket Accept(const Socket& listener, Deadline deadline) {
  while (WaitFor(listener.descriptor(), POLLIN, deadline)) {
    const int descriptor = accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor >= 0) return Prepared(descriptor);
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) Fail("accept");
  }
  return {};
}

Socket Connect(const std::string& host, int port, Deadline deadline) {
  const auto attempt = [&]() -> Socket {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
    Socket socket;
    for (const addrinfo* at = found; at != nullptr && socket.descriptor() < 0; at = at->ai_next) {
      socket = TryConnect(at->ai_addr, at->ai_addrlen, deadline);
    }
    freeaddrinfo(found);
    return socket;
  };
  return Persist(attempt, deadline);
}

Socket Connect(const Address& address, Deadline deadline) {
  return Persist(
      [&] {
        return TryConnect(reinterpret_cast<const sockaddr*>(&address.at), address.length, deadline);
      },
      deadline);
}

void WriteAll(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      Fail("send");
    } else if (!WaitFor(socket.descriptor(), POLLOUT, deadline)) {
      throw Error("the other side takes nothing");
    }
  }
}

void ReadAll(const Socket& socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      throw Error("the other side has closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      Fail("receive");
    } else if (!WaitFor(socket.descriptor(), POLLIN, deadline)) {
      throw Error("the other side says nothing");
    }
  }
}

}  // namespace pipelag
