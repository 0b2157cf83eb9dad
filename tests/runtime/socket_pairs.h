// Processes without processes: every rank on a thread of its own with a wire of its own, joined to
// the others by a socket each.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "models/error.h"
#include "runtime/processes/socket_wire.h"
#include "runtime/processes/train.h"

namespace pipelag {

/// `descriptors`: receives those of every rank.
inline std::vector<std::unique_ptr<Wire>> SocketPairs(
    int ranks, std::vector<std::vector<int>>* descriptors = nullptr) {
  const auto n = static_cast<size_t>(ranks);
  std::vector<std::vector<Socket>> ends(n);
  for (auto& of_rank : ends) of_rank.resize(n);
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      int pair[2];
      CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
      ends[a][b] = Socket(pair[0]);
      ends[b][a] = Socket(pair[1]);
      if (descriptors == nullptr) continue;
      descriptors->resize(n);
      (*descriptors)[a].push_back(pair[0]);
      (*descriptors)[b].push_back(pair[1]);
    }
  }
  std::vector<std::unique_ptr<Wire>> wires;
  for (size_t rank = 0; rank < n; ++rank) {
    wires.push_back(WireOver(static_cast<int>(rank), std::move(ends[rank])));
  }
  return wires;
}

/// What each rank's TrainOnProcesses threw, by rank; null where it did not.
struct SocketPairsRun {
  std::optional<ProcessesResult> result;
  std::vector<std::exception_ptr> errors;
};
inline SocketPairsRun RunOnSocketPairs(const Program& program, const TrainingOptions& options,
                                       const Corpus& corpus, const Interposer& interpose = {}) {
  const int ranks = program.schedule().ranks;
  std::vector<std::unique_ptr<Wire>> wires = SocketPairs(ranks);
  SocketPairsRun run;
  run.errors.resize(static_cast<size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      try {
        auto result = TrainOnProcesses(program, options, corpus, *wires[r], interpose);
        CHECK(result.has_value() == (rank == 0));
        if (result) run.result = std::move(result);
      } catch (...) {
        run.errors[r] = std::current_exception();
        wires[r]->Abandon();  // as the end of a process would
      }
    });
  }
  threads.clear();
  return run;
}

inline TrainingResult TrainOnSocketPairs(const Program& program, const TrainingOptions& options,
                                         const Corpus& corpus) {
  const SocketPairsRun run = RunOnSocketPairs(program, options, corpus);
  for (const std::exception_ptr& error : run.errors) {
    if (error) std::rethrow_exception(error);
  }
  return run.result->training;
}

}  // namespace pipelag
