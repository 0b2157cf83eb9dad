// Brings the losses of all micro-batches to the one process that watches the steps, where several
// have a last stage: copies of the pipeline, or streams of two directions.
#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/processes/notes.h"
#include "runtime/processes/process_link.h"

namespace pipelag {

/// The rank that watches: that of the first stream's last stage.
int WatchingRank(const Schedule& schedule);

class LossMessages {
 public:
  using Watch = std::function<void(int64_t microbatch, double loss)>;

  /// Uses `tag`, borrows the link and the notes. `watch`: told of every micro-batch on the rank
  /// that watches, by whichever thread of the caller's is in Tell or Finish.
  LossMessages(const Program& program, ProcessLink& link, int tag, const Notes& notes, Watch watch);

  /// The Σ token losses of a micro-batch that this rank has.
  void Tell(int64_t microbatch, double loss);
  /// After the last one: on the rank that watches waits for those of all others, unless the loss is
  /// known to have diverged, which ends them early.
  void Finish();

 private:
  struct Message {
    int64_t microbatch = 0;
    double loss = 0;
  };
  struct Incoming {
    int peer = 0;
    int64_t left = 0;
    Message message;
    Wire::Handle handle = 0;
  };

  bool Listen(Incoming& from, Wire& wire);
  void PassOn();

  ProcessLink& link_;
  int tag_;
  int watching_;
  const Notes& notes_;
  Watch watch_;
  std::list<Incoming> incoming_;
  std::vector<EventPtr> all_heard_;
  std::mutex mutex_;  // of what follows
  std::vector<Message> heard_;
};

}  // namespace pipelag
