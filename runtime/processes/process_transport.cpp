#include "runtime/processes/process_transport.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/network/gemm.h"
#include "runtime/optimizer/norm.h"
#include "runtime/runnable.h"
#include "runtime/summation.h"

namespace pipelag {
namespace {

constexpr int kMostTags = 32768;

/// One summand of one member, where it comes from and goes to.
template <class Value>
struct Summand {
  int place = 0;  // in the order of summation
  int rank = 0;
  std::span<Value> own;         // on the rank that has it
  std::vector<Value> received;  // elsewhere

  std::span<Value> values() { return own.empty() ? std::span<Value>(received) : own; }
};

/// A sum, seen from one member: goes on whenever a message is done, never waits.
template <class Value>
class Sum {
 public:
  /// `summands` of all members, in the order of summation; all of one length.
  Sum(int rank, int root, int tag, std::vector<Summand<Value>> summands)
      : rank_(rank), root_(root), tag_(tag), summands_(std::move(summands)) {}

  bool Advance(Wire& wire) {
    while (std::all_of(under_way_.begin(), under_way_.end(), [&](Wire::Handle& handle) {
      if (handle != kDone && wire.Done(handle)) handle = kDone;
      return handle == kDone;
    })) {
      under_way_.clear();
      switch (phase_) {
        case Phase::kCollect:
          Collect(wire);
          phase_ = Phase::kSpread;
          break;
        case Phase::kSpread:
          if (rank_ == root_) Add();
          Spread(wire);
          phase_ = Phase::kDone;
          break;
        case Phase::kDone:
          return true;
      }
    }
    return false;
  }

 private:
  enum class Phase : uint8_t { kCollect, kSpread, kDone };
  static constexpr Wire::Handle kDone = -1;

  void Collect(Wire& wire) {
    for (Summand<Value>& summand : summands_) {
      if (summand.rank == root_) continue;
      if (rank_ == root_) {
        under_way_.push_back(
            wire.Receive(summand.rank, tag_, std::as_writable_bytes(summand.values())));
      } else if (summand.rank == rank_) {
        under_way_.push_back(wire.Send(root_, tag_, std::as_bytes(summand.values())));
      }
    }
  }

  void Add() {
    std::vector<std::span<Value>> values;
    for (Summand<Value>& summand : summands_) values.push_back(summand.values());
    AddUp(values);
  }

  void Spread(Wire& wire) {
    for (Summand<Value>& summand : summands_) {
      if (summand.rank == root_) continue;
      if (rank_ == root_) {
        under_way_.push_back(
            wire.Send(summand.rank, tag_, std::as_bytes(summands_.front().values())));
      } else if (summand.rank == rank_) {
        under_way_.push_back(wire.Receive(root_, tag_, std::as_writable_bytes(summand.values())));
      }
    }
  }

  int rank_;
  int root_;
  int tag_;
  std::vector<Summand<Value>> summands_;
  std::vector<Wire::Handle> under_way_;
  Phase phase_ = Phase::kCollect;
};

}  // namespace

ProcessTransport::ProcessTransport(const Program& program, ProcessLink& link)
    : program_(program),
      link_(link),
      rank_(link.rank()),
      free_tag_(static_cast<int>(program.lanes().size() + program.schedule().groups.size())),
      posted_(program.lanes().size()) {
  if (free_tag_ >= kMostTags - 16) {
    throw Error(
        fmt::format("{} lanes and groups are more than processes can tell apart", free_tag_));
  }
}

EventPtr ProcessTransport::Post(const Transfer& transfer, std::span<const EventPtr> after) {
  for (const EventPtr& event : after) event->Wait();
  const Lane& lane = program_.lanes()[static_cast<size_t>(transfer.lane)];
  const int peer = transfer.send ? lane.receiver : lane.sender;
  const int64_t number = posted_[static_cast<size_t>(transfer.lane)]++;
  std::string waiting = WaitingForMessage(lane, transfer.send, number);
  const std::span bytes(transfer.buffer, transfer.bytes);
  return transfer.send ? link_.Send(peer, transfer.lane, bytes, std::move(waiting))
                       : link_.Receive(peer, transfer.lane, bytes, std::move(waiting));
}

EventPtr ProcessTransport::PostGradientSum(int group, const std::vector<GradientPart>& parts,
                                           std::span<const EventPtr> after) {
  for (const EventPtr& event : after) event->Wait();
  PrepareThread();
  const Schedule& schedule = program_.schedule();
  const CollectiveGroup& members = schedule.groups[static_cast<size_t>(group)];
  std::vector<Summand<float>> summands;
  for (const int stage : members.stages) {
    summands.push_back({stage, schedule.placement[static_cast<size_t>(stage)], {}, {}});
  }
  std::sort(summands.begin(), summands.end(),
            [](const auto& a, const auto& b) { return a.place < b.place; });
  const size_t length = parts.front().values.size();
  int root = summands.front().rank;
  for (Summand<float>& summand : summands) {
    root = std::min(root, summand.rank);
    const auto own = std::find_if(parts.begin(), parts.end(), [&](const GradientPart& part) {
      return part.stage == summand.place;
    });
    if (own != parts.end()) summand.own = own->values;
  }
  for (Summand<float>& summand : summands) {
    if (summand.own.empty() && rank_ == root) summand.received.resize(length);
  }
  const int tag = static_cast<int>(program_.lanes().size()) + group;
  const auto sum = std::make_shared<Sum<float>>(rank_, root, tag, std::move(summands));
  return BeginInOrder(
      [sum, parts](Wire& wire) {
        PrepareThread();  // whichever thread comes to it adds them up
        if (!sum->Advance(wire)) return false;
        for (const GradientPart& part : parts) {
          if (part.squared_norm == nullptr) continue;
          *part.squared_norm =
              SquaredNorm(static_cast<int64_t>(part.values.size()), part.values.data());
        }
        return true;
      },
      group);
}

EventPtr ProcessTransport::PostAllReduce(int group, std::span<double> values,
                                         std::span<const EventPtr> after) {
  for (const EventPtr& event : after) event->Wait();
  const Schedule& schedule = program_.schedule();
  const std::vector<int> ranks = RanksOf(schedule, schedule.groups[static_cast<size_t>(group)]);
  std::vector<Summand<double>> summands;
  for (const int rank : ranks) {
    Summand<double> summand{rank, rank, {}, {}};
    if (rank == rank_) {
      summand.own = values;
    } else if (rank_ == ranks.front()) {
      summand.received.resize(values.size());
    }
    summands.push_back(std::move(summand));
  }
  const int tag = static_cast<int>(program_.lanes().size()) + group;
  const auto sum = std::make_shared<Sum<double>>(rank_, ranks.front(), tag, std::move(summands));
  return BeginInOrder([sum](Wire& wire) { return sum->Advance(wire); }, group);
}

EventPtr ProcessTransport::BeginInOrder(ProcessLink::Advance advance, int group) {
  last_collective_ = link_.Begin(
      [before = last_collective_, advance = std::move(advance)](Wire& wire) {
        return (before == nullptr || before->Happened()) && advance(wire);
      },
      WaitingForGroup(rank_, group));
  return last_collective_;
}

}  // namespace pipelag
