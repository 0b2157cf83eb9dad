#include "runtime/processes/rank_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "models/error.h"

namespace pipelag {
namespace {

/// What one rank's run came to, as bytes and back.
class Package {
 public:
  template <class T>
  void Add(std::span<const T> values) {
    const auto count = static_cast<uint64_t>(values.size());
    AddBytes(std::as_bytes(std::span(&count, 1)));
    AddBytes(std::as_bytes(values));
  }
  template <class T>
  std::vector<T> Take() {
    uint64_t count = 0;
    TakeBytes(std::as_writable_bytes(std::span(&count, 1)));
    std::vector<T> values(count);
    TakeBytes(std::as_writable_bytes(std::span(values)));
    return values;
  }

  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  void AddBytes(std::span<const std::byte> added) {
    bytes_.insert(bytes_.end(), added.begin(), added.end());
  }
  void TakeBytes(std::span<std::byte> to) {
    CHECK(taken_ + to.size() <= bytes_.size());
    std::copy_n(bytes_.data() + taken_, to.size(), to.data());
    taken_ += to.size();
  }

  std::vector<std::byte> bytes_;
  size_t taken_ = 0;
};

Package Pack(const RankRun& run) {
  static_assert(std::is_trivially_copyable_v<Span>);
  Package package;
  package.Add(std::span<const Span>(run.result.spans));
  for (const auto* counts : {&run.result.peak_activations, &run.result.peak_kept,
                             &run.result.peak_versions, &run.result.newest_weights}) {
    package.Add(std::span<const int>(*counts));
  }
  package.Add(std::span(&run.result.peak_handovers, 1));
  package.Add(std::span<const double>(run.losses));
  for (const auto& weights : run.weights) package.Add(std::span<const float>(weights));
  if (run.breaking) {
    const std::array<int64_t, 3> when = {run.breaking->step, run.breaking->phase,
                                         run.breaking->order};
    package.Add(std::span<const int64_t>(when));
    package.Add(std::span<const char>(run.breaking->where));
  } else {
    package.Add(std::span<const int64_t>());
  }
  return package;
}

RankRun Unpack(Package& package, size_t stages) {
  RankRun run;
  run.result.spans = package.Take<Span>();
  for (auto* counts : {&run.result.peak_activations, &run.result.peak_kept,
                       &run.result.peak_versions, &run.result.newest_weights}) {
    *counts = package.Take<int>();
  }
  run.result.peak_handovers = package.Take<int>().front();
  run.losses = package.Take<double>();
  for (size_t i = 0; i < stages; ++i) run.weights.push_back(package.Take<float>());
  if (const auto when = package.Take<int64_t>(); !when.empty()) {
    const std::vector<char> where = package.Take<char>();
    run.breaking = {when[0], when[1], when[2], std::string(where.begin(), where.end())};
  }
  return run;
}

}  // namespace

void SendToFirst(ProcessLink& link, int tag, const RankRun& run) {
  const std::string waiting =
      fmt::format("rank {} waits for rank 0 to take its results", link.rank());
  const auto owned = std::make_shared<Package>(Pack(run));
  const auto size = std::make_shared<uint64_t>(owned->bytes().size());
  link.Send(0, tag, std::as_bytes(std::span(size.get(), 1)), waiting, size)->Wait();
  link.Send(0, tag, owned->bytes(), waiting, owned)->Wait();
}

RankRun TakeFrom(ProcessLink& link, int peer, int tag, size_t stages) {
  const std::string waiting = fmt::format("rank 0 waits for the results of rank {}", peer);
  const auto size = std::make_shared<uint64_t>();
  link.Receive(peer, tag, std::as_writable_bytes(std::span(size.get(), 1)), waiting, size)->Wait();
  const auto package = std::make_shared<Package>();
  package->bytes().resize(*size);
  link.Receive(peer, tag, package->bytes(), waiting, package)->Wait();
  return Unpack(*package, stages);
}

void AlignSpans(const std::vector<ClockOffset>& clocks, std::vector<RankRun>& runs) {
  for (size_t rank = 0; rank < runs.size(); ++rank) {
    for (Span& span : runs[rank].result.spans) {
      span.start -= clocks[rank].ahead;
      span.end -= clocks[rank].ahead;
    }
  }
}

std::vector<double> GatherLosses(const Schedule& schedule, const std::vector<RankRun>& runs) {
  std::vector<double> losses(runs.front().losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    const int last = schedule.PlacedStage(schedule.StreamOfMicrobatch(static_cast<int64_t>(i)),
                                          schedule.stages - 1);
    losses[i] = runs[static_cast<size_t>(schedule.placement[static_cast<size_t>(last)])].losses[i];
  }
  return losses;
}

}  // namespace pipelag
