// Messages are on their way while the ranks at both ends compute.
#include "runtime/processes/process_link.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <vector>

#include "tests/runtime/socket_pairs.h"

namespace pipelag {
namespace {

bool HappensByItself(const EventPtr& event) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!event->Happened() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return event->Happened();
}

TEST(ProcessLink, MovesMessagesWhileNobodyWaitsForThem) {
  std::vector<std::unique_ptr<Wire>> wires = SocketPairs(2);
  RunControl control(std::chrono::hours(1));
  ProcessLink sender(*wires[0], control);
  ProcessLink receiver(*wires[1], control);
  // Far more than sockets hold, so that both ends have to do their part again and again.
  const std::vector<std::byte> sent(32 << 20, std::byte{5});
  std::vector<std::byte> received(sent.size());
  const EventPtr arrived = receiver.Receive(0, 1, received, "the receiver waits");
  const EventPtr gone = sender.Send(1, 1, sent, "the sender waits");
  EXPECT_TRUE(HappensByItself(arrived));
  EXPECT_TRUE(HappensByItself(gone));
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace pipelag
