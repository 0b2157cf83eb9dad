// Sockets that find whom they look for, and nobody else.
#include "runtime/processes/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstdint>

namespace pipelag {
namespace {

Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

TEST(Socket, ThatFoundItselfIsKnownFromOneThatFoundAListener) {
  const Socket alone(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* address = reinterpret_cast<sockaddr*>(&at);
  socklen_t size = sizeof at;
  ASSERT_EQ(bind(alone.descriptor(), address, size), 0);
  ASSERT_EQ(getsockname(alone.descriptor(), address, &size), 0);
  ASSERT_EQ(connect(alone.descriptor(), address, size), 0);
  EXPECT_TRUE(IsConnectedToItself(alone));

  const Socket listener = Listen(0);
  const Socket found = Connect("127.0.0.1", PortOf(listener), Soon());
  const Socket accepted = Accept(listener, Soon());
  ASSERT_GE(found.descriptor(), 0);
  ASSERT_GE(accepted.descriptor(), 0);
  EXPECT_FALSE(IsConnectedToItself(found));
  EXPECT_FALSE(IsConnectedToItself(accepted));
}

}  // namespace
}  // namespace pipelag
