#include "runtime/processes/gradient_sum.h"

#include <algorithm>

#include "models/error.h"
#include "runtime/network/gemm.h"

namespace pipelag {
namespace {

constexpr size_t kMostAddedAtOnce = size_t{1} << 17;

}  // namespace

GradientSum::GradientSum(int rank, int tag, std::vector<Summand> summands, size_t together,
                         size_t length, std::shared_ptr<const GradientSum> before,
                         std::shared_ptr<std::vector<float>> received)
    : rank_(rank),
      tag_(tag),
      summands_(std::move(summands)),
      together_(together),
      length_(length),
      before_(std::move(before)),
      received_(std::move(received)) {
  for (const Summand& summand : summands_) ranks_.push_back(summand.rank);
  std::sort(ranks_.begin(), ranks_.end());
  ranks_.erase(std::unique(ranks_.begin(), ranks_.end()), ranks_.end());
  const auto me = std::lower_bound(ranks_.begin(), ranks_.end(), rank_);
  CHECK(me != ranks_.end() && *me == rank_);
  me_ = static_cast<size_t>(me - ranks_.begin());
}

PartOfSum GradientSum::PartOf(size_t member) const {
  return pipelag::PartOf(length_, member, ranks_.size());
}

/// The first of this rank's own summands: the one that the result comes into.
std::span<float> GradientSum::Own() const {
  const auto own = std::find_if(summands_.begin(), summands_.end(),
                                [&](const Summand& summand) { return summand.rank == rank_; });
  return own->own;
}

bool GradientSum::AllDone(Wire& wire) {
  while (!under_way_.empty()) {
    if (!wire.Done(under_way_.back())) return false;
    under_way_.pop_back();  // the wire has forgotten it
  }
  return true;
}

bool GradientSum::Advance(Wire& wire) {
  for (;;) {
    switch (phase_) {
      case Phase::kBefore:
        if (before_ && before_->phase_ != Phase::kDone) return false;
        before_.reset();
        Scatter(wire);
        phase_ = Phase::kScatter;
        break;
      case Phase::kScatter:
        if (!AllDone(wire)) return false;
        phase_ = Phase::kAdd;
        break;
      case Phase::kAdd:
        if (!Add()) return false;
        Gather(wire);
        phase_ = Phase::kGather;
        break;
      case Phase::kGather:
        if (!AllDone(wire)) return false;
        Finish();
        phase_ = Phase::kDone;
        break;
      case Phase::kDone:
        return true;
    }
  }
}

/// Every summand's parts to their owners.
void GradientSum::Scatter(Wire& wire) {
  const PartOfSum mine = PartOf(me_);
  size_t foreign = 0;
  for (const Summand& summand : summands_) foreign += summand.rank == rank_ ? 0 : 1;
  CHECK(received_->size() == foreign * mine.length);
  size_t next = 0;
  for (const Summand& summand : summands_) {
    if (summand.rank != rank_) {
      const std::span<float> piece = std::span(*received_).subspan(next, mine.length);
      next += mine.length;
      pieces_.push_back(piece);
      if (mine.length == 0) continue;
      under_way_.push_back(wire.Receive(summand.rank, tag_, std::as_writable_bytes(piece)));
      continue;
    }
    CHECK(summand.own.size() == length_);
    pieces_.push_back(summand.own.subspan(mine.begin, mine.length));
    for (size_t owner = 0; owner < ranks_.size(); ++owner) {
      const PartOfSum part = PartOf(owner);
      if (owner == me_ || part.length == 0) continue;
      under_way_.push_back(wire.Send(ranks_[owner], tag_,
                                     std::as_bytes(summand.own.subspan(part.begin, part.length))));
    }
  }
}

/// True once the whole part is added, and stands in this rank's own summand.
bool GradientSum::Add() {
  const PartOfSum mine = PartOf(me_);
  const size_t length = std::min(kMostAddedAtOnce, mine.length - added_);
  if (length > 0) {
    PrepareThread();  // whichever thread comes to it
    std::vector<std::span<float>> summands;
    for (const std::span<float>& piece : pieces_) summands.push_back(piece.subspan(added_, length));
    AddInto(summands, together_);
    const std::span<float> own = Own().subspan(mine.begin + added_, length);
    if (own.data() != summands.front().data()) {
      std::copy(summands.front().begin(), summands.front().end(), own.begin());
    }
    added_ += length;
  }
  return added_ == mine.length;
}

/// Every part from its owner to all.
void GradientSum::Gather(Wire& wire) {
  for (size_t other = 0; other < ranks_.size(); ++other) {
    if (other == me_) continue;
    const PartOfSum mine = PartOf(me_);
    const PartOfSum theirs = PartOf(other);
    if (theirs.length > 0) {
      const std::span<float> to = Own().subspan(theirs.begin, theirs.length);
      under_way_.push_back(wire.Receive(ranks_[other], tag_, std::as_writable_bytes(to)));
    }
    if (mine.length > 0) {
      under_way_.push_back(
          wire.Send(ranks_[other], tag_, std::as_bytes(Own().subspan(mine.begin, mine.length))));
    }
  }
}

void GradientSum::Finish() {
  const std::span<float> sum = Own();
  for (const Summand& summand : summands_) {
    if (summand.rank != rank_ || summand.own.data() == sum.data()) continue;
    std::copy(sum.begin(), sum.end(), summand.own.begin());
  }
}

}  // namespace pipelag
