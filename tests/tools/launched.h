// Ranks that are processes, started as launchers start them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/tools/command.h"

namespace pipelag {

/// Free a moment ago, and nobody is given it again so soon.
inline int FreePort() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  socklen_t size = sizeof at;
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size), 0);
  close(listener);
  return ntohs(at.sin_port);
}

inline std::vector<Started> StartAll(const Workplace& place, int ranks,
                                     const std::string& command) {
  const std::string port = fmt::format("PIPELAG_PORT={}", FreePort());
  std::vector<Started> started;
  for (int rank = 0; rank < ranks; ++rank) {
    started.push_back(
        place.Start(command, {fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", ranks),
                              "MASTER_ADDR=localhost", port}));
  }
  return started;
}

inline std::vector<Outcome> FinishAll(std::vector<Started>& started) {
  std::vector<Outcome> outcomes;
  for (Started& one : started) outcomes.push_back(one.Finish());
  return outcomes;
}

/// Until what a run writes to `log` has more than `lines` lines.
inline void WaitForLines(const Workplace& place, const std::string& log, std::ptrdiff_t lines) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < end) {
    const std::string text = place.Read(log);
    if (std::count(text.begin(), text.end(), '\n') > lines) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace pipelag
