// What happens next: small trivially copyable events in one heap, by time and then by order of
// entry. Knows nothing of what an event means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipelag {

struct QueuedEvent {
  int64_t time = 0;
  uint64_t order = 0;  ///< sequence number, breaks ties; the kind in its lowest bits
  int32_t subject = 0;
  uint32_t generation = 0;  ///< of the subject, where it may be re-timed

  static constexpr int kKindBits = 3;
  unsigned kind() const { return static_cast<unsigned>(order & ((1u << kKindBits) - 1)); }
};
static_assert(sizeof(QueuedEvent) == 24);

/// A heap of four children per node: half as deep as one of two, its children on one cache line.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  const QueuedEvent& top() const { return heap_.front(); }

  void Push(int64_t time, unsigned kind, int32_t subject, uint32_t generation = 0) {
    const QueuedEvent event{time, next_++ << QueuedEvent::kKindBits | kind, subject, generation};
    size_t hole = heap_.size();
    heap_.push_back(event);
    while (hole > 0) {
      const size_t parent = (hole - 1) / 4;
      if (!Before(event, heap_[parent])) break;
      heap_[hole] = heap_[parent];
      hole = parent;
    }
    heap_[hole] = event;
  }

  QueuedEvent Pop() {
    const QueuedEvent first = heap_.front();
    const QueuedEvent last = heap_.back();
    heap_.pop_back();
    const size_t size = heap_.size();
    if (size == 0) return first;
    size_t hole = 0;
    for (;;) {
      const size_t begin = 4 * hole + 1;
      if (begin >= size) break;
      const size_t end = begin + 4 < size ? begin + 4 : size;
      size_t least = begin;
      for (size_t child = begin + 1; child < end; ++child) {
        if (Before(heap_[child], heap_[least])) least = child;
      }
      if (!Before(heap_[least], last)) break;
      heap_[hole] = heap_[least];
      hole = least;
    }
    heap_[hole] = last;
    return first;
  }

 private:
  static bool Before(const QueuedEvent& a, const QueuedEvent& b) {
    return a.time != b.time ? a.time < b.time : a.order < b.order;
  }

  std::vector<QueuedEvent> heap_;
  uint64_t next_ = 0;
};

}  // namespace pipelag
