#include "runtime/processes/process_transport.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/network/gemm.h"
#include "runtime/optimizer/norm.h"
#include "runtime/runnable.h"
#include "runtime/summation.h"

namespace pipelag {
namespace {

/// The numbers of one member, where they come from and go to.
struct Summand {
  int rank = 0;
  std::span<double> own;         // on the rank that has it
  std::vector<double> received;  // elsewhere

  std::span<double> values() { return own.empty() ? std::span<double>(received) : own; }
};

}  // namespace

/// A sum, seen from one member: goes on whenever a message is done, never waits.
class ProcessTransport::Sum {
 public:
  /// `summands` of all members, in the order of summation; all of one length. Begins when `before`
  /// is done, if there is one: messages of both meet in the order in which they are posted.
  Sum(int rank, int root, int tag, std::vector<Summand> summands, std::shared_ptr<const Sum> before)
      : rank_(rank),
        root_(root),
        tag_(tag),
        summands_(std::move(summands)),
        before_(std::move(before)) {}

  bool Advance(Wire& wire) {
    if (before_ && !before_->done_) return false;
    before_.reset();
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
          done_ = true;
          return true;
      }
    }
    return false;
  }

 private:
  enum class Phase : uint8_t { kCollect, kSpread, kDone };
  static constexpr Wire::Handle kDone = -1;

  void Collect(Wire& wire) {
    for (Summand& summand : summands_) {
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
    std::vector<std::span<double>> values;
    for (Summand& summand : summands_) values.push_back(summand.values());
    AddUp(values);
  }

  void Spread(Wire& wire) {
    for (Summand& summand : summands_) {
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
  std::vector<Summand> summands_;
  std::vector<Wire::Handle> under_way_;
  std::shared_ptr<const Sum> before_;
  Phase phase_ = Phase::kCollect;
  bool done_ = false;
};

ProcessTransport::ProcessTransport(const Program& program, ProcessLink& link)
    : program_(program),
      link_(link),
      rank_(link.rank()),
      posted_(program.lanes().size()),
      gradients_(program.schedule().groups.size()),
      last_(program.schedule().groups.size()) {
  const size_t tags = program.lanes().size() + program.schedule().groups.size();
  if (tags > kFreeTag) {
    throw Error(fmt::format("{} lanes and groups are more than processes can tell apart", tags));
  }
}

void ProcessTransport::Reserve(const RankPlan& plan, Compute& compute) {
  for (const ReductionPlan& reduction : plan.reductions) {
    const auto g = static_cast<size_t>(reduction.group);
    const bool shared = program_.schedule().groups[g].purpose == CollectiveGroup::Purpose::kShared;
    const std::span<float> own = shared ? compute.SharedGradient(reduction.stage, 0)
                                        : compute.GradientBuffer(reduction.stage, 0);
    gradients_[g].received->resize(reduction.ReceivedElements(own.size()));
  }
}

EventPtr ProcessTransport::Post(const Transfer& transfer, std::span<const EventPtr> after) {
  for (const EventPtr& event : after) event->Wait();
  const Lane& lane = program_.lanes()[static_cast<size_t>(transfer.lane)];
  const int peer = transfer.send ? lane.receiver : lane.sender;
  const int64_t number = posted_[static_cast<size_t>(transfer.lane)]++;
  std::string waiting = WaitingForMessage(program_.schedule(), lane, transfer.send, number);
  const std::span bytes(transfer.buffer, transfer.bytes);
  return transfer.send ? link_.Send(peer, transfer.lane, bytes, std::move(waiting))
                       : link_.Receive(peer, transfer.lane, bytes, std::move(waiting));
}

EventPtr ProcessTransport::PostGradientSum(int group, const std::vector<GradientPart>& parts,
                                           std::span<const EventPtr> after) {
  for (const EventPtr& event : after) event->Wait();
  const Schedule& schedule = program_.schedule();
  std::vector<GradientSum::Summand> summands;
  for (const int stage : schedule.groups[static_cast<size_t>(group)].stages) {
    summands.push_back({schedule.placement[static_cast<size_t>(stage)]});
    const auto own = std::find_if(parts.begin(), parts.end(),
                                  [&](const GradientPart& part) { return part.stage == stage; });
    if (own != parts.end()) summands.back().own = own->values;
  }
  Gradients& of_group = gradients_[static_cast<size_t>(group)];
  const int tag = static_cast<int>(program_.lanes().size()) + group;
  const auto sum = std::make_shared<GradientSum>(
      rank_, tag, std::move(summands), static_cast<size_t>(schedule.streams_per_replica()),
      parts.front().values.size(), of_group.last, of_group.received);
  of_group.last = sum;
  return link_.Begin(
      [sum, parts](Wire& wire) {
        if (!sum->Advance(wire)) return false;
        for (const GradientPart& part : parts) {
          if (part.squared_norm == nullptr) continue;
          PrepareThread();  // whichever thread comes to it
          *part.squared_norm =
              SquaredNorm(static_cast<int64_t>(part.values.size()), part.values.data());
        }
        return true;
      },
      WaitingForGroup(schedule, rank_, group));
}

EventPtr ProcessTransport::PostAllReduce(int group, std::span<double> values,
                                         std::span<const EventPtr> after) {
  for (const EventPtr& event : after) event->Wait();
  const Schedule& schedule = program_.schedule();
  const std::vector<int> ranks = RanksOf(schedule, schedule.groups[static_cast<size_t>(group)]);
  std::vector<Summand> summands;
  for (const int rank : ranks) {
    Summand summand{rank, {}, {}};
    if (rank == rank_) {
      summand.own = values;
    } else if (rank_ == ranks.front()) {
      summand.received.resize(values.size());
    }
    summands.push_back(std::move(summand));
  }
  const int tag = static_cast<int>(program_.lanes().size()) + group;
  std::shared_ptr<const Sum>& last = last_[static_cast<size_t>(group)];
  const auto sum = std::make_shared<Sum>(rank_, ranks.front(), tag, std::move(summands), last);
  last = sum;
  return link_.Begin([sum](Wire& wire) { return sum->Advance(wire); },
                     WaitingForGroup(schedule, rank_, group));
}

}  // namespace pipelag
