#include "runtime/processes/clocks.h"

#include <fmt/format.h>

namespace pipelag {
namespace {

constexpr int kRounds = 40;

template <class T>
EventPtr Give(ProcessLink& link, int peer, int tag, const T& value) {
  return link.Send(
      peer, tag, std::as_bytes(std::span(&value, 1)),
      fmt::format("rank {} waits for rank {} to compare clocks", link.wire().rank(), peer));
}
template <class T>
EventPtr Take(ProcessLink& link, int peer, int tag, T& value) {
  return link.Receive(
      peer, tag, std::as_writable_bytes(std::span(&value, 1)),
      fmt::format("rank {} waits for rank {} to compare clocks", link.wire().rank(), peer));
}

}  // namespace

std::vector<ClockOffset> CompareClocks(ProcessLink& link, int tag) {
  int64_t asked = 0;
  int64_t answer = 0;
  if (link.wire().rank() != 0) {
    for (int round = 0; round < kRounds; ++round) {
      Take(link, 0, tag, asked)->Wait();
      answer = link.control().Now().count();
      Give(link, 0, tag, answer)->Wait();
    }
    return {};
  }
  std::vector<ClockOffset> offsets(1);
  for (int peer = 1; peer < link.wire().size(); ++peer) {
    ClockOffset best{Nanoseconds{0}, Nanoseconds::max()};
    for (int round = 0; round < kRounds; ++round) {
      const EventPtr answered = Take(link, peer, tag, answer);
      const Nanoseconds before = link.control().Now();
      asked = before.count();
      Give(link, peer, tag, asked)->Wait();
      answered->Wait();
      const Nanoseconds half = (link.control().Now() - before) / 2;
      if (half < best.uncertainty) best = {Nanoseconds{answer} - before - half, half};
    }
    offsets.push_back(best);
  }
  return offsets;
}

}  // namespace pipelag
