#include "runtime/cpu/shared_sum.h"

#include <algorithm>

#include "runtime/network/gemm.h"
#include "runtime/optimizer/norm.h"
#include "runtime/summation.h"

namespace pipelag {
namespace {

constexpr size_t kBlockElements = 16384;

}  // namespace

class SharedSumEvent : public Event {
 public:
  SharedSumEvent(std::shared_ptr<SharedSum> sum, std::string waiting)
      : sum_(std::move(sum)), waiting_(std::move(waiting)) {}

  bool Happened() const override {
    if (sum_->complete_.load(std::memory_order_acquire)) sum_->Work();
    return sum_->happened_.load(std::memory_order_acquire);
  }
  void Wait() const override { sum_->Await(waiting_); }
  Interval When() const override {
    CHECK(Happened());
    return sum_->when_;
  }

 private:
  std::shared_ptr<SharedSum> sum_;
  std::string waiting_;
};

EventPtr SharedSum::EventOf(std::string waiting) {
  return std::make_shared<SharedSumEvent>(shared_from_this(), std::move(waiting));
}

bool SharedSum::Contribute(int place, std::span<float> values, double* squared_norm) {
  {
    const std::lock_guard lock(mutex_);
    parts_.push_back({place, values, squared_norm});
    if (parts_.size() < expected_) return false;
    std::sort(parts_.begin(), parts_.end(),
              [](const Part& a, const Part& b) { return a.place < b.place; });
    const size_t elements = values.size();
    blocks_ = std::max<size_t>(1, (elements + kBlockElements - 1) / kBlockElements);
    complete_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (values.empty()) Work();  // no work that could be put off
  return true;
}

void SharedSum::Await(const std::string& waiting) {
  AwaitFlag(complete_, waiting);
  Work();
  AwaitFlag(happened_, waiting);
}

void SharedSum::AwaitFlag(const std::atomic<bool>& flag, const std::string& waiting) {
  const auto raised = [&] { return flag.load(std::memory_order_acquire); };
  if (control_.Look(raised)) return;
  std::unique_lock lock(mutex_);
  control_.Wait(lock, changed_, raised, [&] { return waiting; });
}

void SharedSum::Work() {
  PrepareThread();
  for (;;) {
    const size_t block = next_block_.fetch_add(1, std::memory_order_relaxed);
    if (block >= blocks_) return;
    if (block == 0) when_.start = control_.Now();
    AddBlock(block);
    if (blocks_done_.fetch_add(1, std::memory_order_acq_rel) + 1 < blocks_) continue;
    TakeNorm();
    {
      const std::lock_guard lock(mutex_);
      when_.end = control_.Now();
      happened_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
  }
}

/// Of all parts alike by now.
void SharedSum::TakeNorm() const {
  for (const Part& part : parts_) {
    if (part.squared_norm == nullptr) continue;
    *part.squared_norm = SquaredNorm(static_cast<int64_t>(part.values.size()), part.values.data());
  }
}

void SharedSum::AddBlock(size_t block) {
  const size_t begin = block * kBlockElements;
  std::vector<std::span<float>> summands;
  for (const Part& part : parts_) {
    CHECK(part.values.size() == parts_.front().values.size());
    const size_t length = std::min(kBlockElements, part.values.size() - begin);
    summands.push_back(part.values.subspan(begin, length));
  }
  AddUp(summands, together_);
}

}  // namespace pipelag
