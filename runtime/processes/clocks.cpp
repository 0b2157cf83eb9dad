#include "runtime/processes/clocks.h"

#include <fmt/format.h>

#include "models/error.h"
#include "runtime/sha256.h"

namespace pipelag {
namespace {

constexpr int kRounds = 40;

using Time = std::shared_ptr<int64_t>;

std::string Waiting(const ProcessLink& link, int peer) {
  return fmt::format("rank {} waits for rank {} to compare clocks", link.rank(), peer);
}
EventPtr Give(ProcessLink& link, int peer, int tag, const Time& time) {
  return link.Send(peer, tag, std::as_bytes(std::span(time.get(), 1)), Waiting(link, peer), time);
}
EventPtr Take(ProcessLink& link, int peer, int tag, const Time& time) {
  return link.Receive(peer, tag, std::as_writable_bytes(std::span(time.get(), 1)),
                      Waiting(link, peer), time);
}

}  // namespace

void CompareJobs(ProcessLink& link, int tag, const std::string& job) {
  const auto own = std::make_shared<std::string>(Sha256(job));
  const std::string waiting = fmt::format("rank {} waits for all ranks to begin", link.rank());
  if (link.rank() != 0) {
    link.Send(0, tag, std::as_bytes(std::span(*own)), waiting, own)->Wait();
    return;
  }
  for (int peer = 1; peer < link.size(); ++peer) {
    const auto theirs = std::make_shared<std::string>(own->size(), ' ');
    link.Receive(peer, tag, std::as_writable_bytes(std::span(*theirs)), waiting, theirs)->Wait();
    if (*theirs != *own) {
      throw Error(
          fmt::format("rank {} runs another job than rank 0: start all with the same "
                      "flags and files",
                      peer));
    }
  }
}

std::vector<ClockOffset> CompareClocks(ProcessLink& link, int tag) {
  const auto asked = std::make_shared<int64_t>();
  const auto answer = std::make_shared<int64_t>();
  if (link.rank() != 0) {
    for (int round = 0; round < kRounds; ++round) {
      Take(link, 0, tag, asked)->Wait();
      *answer = link.control().Now().count();
      Give(link, 0, tag, answer)->Wait();
    }
    return {};
  }
  std::vector<ClockOffset> offsets(1);
  for (int peer = 1; peer < link.size(); ++peer) {
    ClockOffset best{Nanoseconds{0}, Nanoseconds::max()};
    for (int round = 0; round < kRounds; ++round) {
      const EventPtr answered = Take(link, peer, tag, answer);
      const Nanoseconds before = link.control().Now();
      *asked = before.count();
      Give(link, peer, tag, asked)->Wait();
      answered->Wait();
      const Nanoseconds half = (link.control().Now() - before) / 2;
      if (half < best.uncertainty) best = {Nanoseconds{*answer} - before - half, half};
    }
    offsets.push_back(best);
  }
  return offsets;
}

}  // namespace pipelag
