// A backend that fails, or worse, at a task of one's choice, and what is then said.
#pragma once

#include <sys/socket.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/compute_around.h"
#include "tests/runtime/socket_pairs.h"

namespace pipelag {

class PowerCut : public ComputeAround {
 public:
  PowerCut(Compute& inner, int countdown, std::function<void()> cut)
      : ComputeAround(inner), countdown_(countdown), cut_(std::move(cut)) {}
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override {
    if (countdown_-- == 0) cut_();
    return ComputeAround::Start(task, after);
  }

 private:
  int countdown_;
  std::function<void()> cut_;
};

/// Empty where there is none.
inline std::string TextOf(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    return failure.what();
  }
}

/// What every rank ends with if one is gone at its `at`-th task, as when it is killed: it says
/// nothing, its connections just close.
inline std::vector<std::string> ErrorsBesideOneGone(const Program& program,
                                                    const TrainingOptions& options,
                                                    const Corpus& corpus, int gone, int at) {
  struct Gone {};
  const int ranks = program.schedule().ranks;
  std::vector<std::vector<int>> descriptors;
  std::vector<std::unique_ptr<Wire>> wires = SocketPairs(ranks, &descriptors);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  bool was_cut = false;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      std::unique_ptr<PowerCut> compute;
      try {
        TrainOnProcesses(program, options, corpus, *wires[r],
                         [&](int, RankBackend inner, RunControl&) {
                           if (rank != gone) return inner;
                           compute = std::make_unique<PowerCut>(*inner.compute, at, [&] {
                             for (const int end : descriptors[r]) shutdown(end, SHUT_RDWR);
                             was_cut = true;
                             throw Gone();
                           });
                           return RankBackend{compute.get(), inner.transport};
                         });
      } catch (const std::exception& error) {
        errors[r] = error.what();
      } catch (const Gone&) {
      }
    });
  }
  threads.clear();  // joins them
  // Its other threads live on here, and have seen the connections close.
  if (was_cut) errors[static_cast<size_t>(gone)].clear();
  return errors;
}

}  // namespace pipelag
