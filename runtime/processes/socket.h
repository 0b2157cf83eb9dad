// TCP sockets that close themselves, and the few things a run does with them. Knows no ranks.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace pipelag {

using Deadline = std::chrono::steady_clock::time_point;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

struct Address {
  sockaddr_storage at{};
  socklen_t length = 0;
};

/// Listens on all addresses of this host; port 0 takes any free one. Throws Error.
Socket Listen(int port);
int PortOf(const Socket& listener);
/// The address at the other end, with another port.
Address PeerAddress(const Socket& socket, int port);
/// While nobody listens yet at a port that the system hands out to whoever connects, it may be
/// handed to the very socket that looks there, which then finds itself. Connect takes that for
/// nobody.
bool IsConnectedToItself(const Socket& socket);

/// All three give up at the deadline: the first two return an unconnected socket then, the third
/// and fourth throw Error, as they do if the other side is gone.
Socket Accept(const Socket& listener, Deadline deadline);
Socket Connect(const std::string& host, int port, Deadline deadline);
Socket Connect(const Address& address, Deadline deadline);
void WriteAll(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);
void ReadAll(const Socket& socket, std::span<std::byte> bytes, Deadline deadline);

}  // namespace pipelag
