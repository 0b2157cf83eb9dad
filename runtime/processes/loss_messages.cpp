#include "runtime/processes/loss_messages.h"

#include <fmt/format.h>

#include <thread>

namespace pipelag {
namespace {

int RankOfLosses(const Schedule& schedule, int stream) {
  const int last = schedule.PlacedStage(stream, schedule.stages - 1);
  return schedule.placement[static_cast<size_t>(last)];
}

}  // namespace

int WatchingRank(const Schedule& schedule) { return RankOfLosses(schedule, 0); }

LossMessages::LossMessages(const Program& program, ProcessLink& link, int tag, const Notes& notes,
                           Watch watch)
    : link_(link),
      tag_(tag),
      watching_(WatchingRank(program.schedule())),
      notes_(notes),
      watch_(std::move(watch)) {
  const Schedule& schedule = program.schedule();
  if (link_.rank() != watching_) return;
  for (int peer = 0; peer < link_.size(); ++peer) {
    int64_t count = 0;
    for (int stream = 0; stream < schedule.streams; ++stream) {
      if (RankOfLosses(schedule, stream) != peer) continue;
      count += program.steps() * schedule.microbatches_per_stream();
    }
    if (peer == watching_ || count == 0) continue;
    incoming_.push_back({.peer = peer, .left = count, .message = {}});
    Incoming& from = incoming_.back();
    all_heard_.push_back(link_.Begin([this, &from](Wire& wire) { return Listen(from, wire); },
                                     fmt::format("{} waits for {} to tell its losses",
                                                 link_.NameOf(watching_), link_.NameOf(peer))));
  }
}

/// True once the peer has told all, or will not.
bool LossMessages::Listen(Incoming& from, Wire& wire) {
  const auto post = [&] {
    from.handle =
        wire.Receive(from.peer, tag_, std::as_writable_bytes(std::span(&from.message, 1)));
  };
  if (from.handle == 0) post();
  while (wire.Done(from.handle)) {
    {
      const std::lock_guard lock(mutex_);
      heard_.push_back(from.message);
    }
    if (--from.left == 0) return true;
    post();
  }
  return false;
}

void LossMessages::Tell(int64_t microbatch, double loss) {
  if (link_.rank() == watching_) {
    PassOn();
    watch_(microbatch, loss);
    return;
  }
  const auto message = std::make_shared<Message>(Message{microbatch, loss});
  link_.Send(watching_, tag_, std::as_bytes(std::span(message.get(), 1)),
             fmt::format("{} waits for {} to hear its losses", link_.NameOf(link_.rank()),
                         link_.NameOf(watching_)),
             message);
}

void LossMessages::Finish() {
  for (const EventPtr& all_heard : all_heard_) {
    while (!all_heard->Happened() && notes_.diverged() == Notes::kNever) {
      link_.control().CheckRunning();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  if (notes_.diverged() == Notes::kNever) PassOn();
}

void LossMessages::PassOn() {
  std::vector<Message> heard;
  {
    const std::lock_guard lock(mutex_);
    heard.swap(heard_);
  }
  for (const Message& message : heard) watch_(message.microbatch, message.loss);
}

}  // namespace pipelag
