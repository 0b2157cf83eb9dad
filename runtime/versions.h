// Which buffer holds which weight version of one stage: a ring, in which a version is overwritten
// when the buffers are used up and nobody is left to read it. Readers are counted, so that the
// number of versions held at once is the program's own. Knows no time.
#pragma once

#include <cstdint>
#include <vector>

#include "models/schedule/program.h"

namespace pipelag {

class VersionTable {
 public:
  /// Of one placed stage of a run. A run that goes on from an earlier one begins with `history`
  /// versions older than its version 0, numbered −1 and down: batch t reads max(−history, t −
  /// delay) or newer. Buffer a holds version −a at first; there are `buffers`, and as many of the
  /// newest versions are there at any time.
  VersionTable(const Program& program, int stage, int history, int buffers);

  /// Buffer of a live version; a broken promise (CHECK) for one that is not.
  int BufferOf(int64_t version) const;
  /// One of the version's readers (F, B or I) has been started.
  void Read(int64_t version);

  struct Target {
    int source = 0;  ///< buffer of the newest version
    int target = 0;  ///< where the next one goes: the same if there is no other
  };
  /// Where the weights still lie that the gradient of `batch` was taken at, just before its update
  /// (which may go there); -1 if they have been overwritten or were not one version.
  int BufferTakenAt(int64_t batch) const;

  /// The next update: makes the newest version plus one.
  Target Advance();

  int newest_buffer() const { return BufferOf(newest_); }
  int peak() const { return peak_; }

 private:
  struct Live {
    int64_t version = 0;
    int64_t readers = 0;  // yet to come
  };

  /// Batches are read from by so many F, B or I that are so late.
  struct Readers {
    int delay = 0;
    int64_t count = 0;
  };

  void CountReaders(const Program& program, int stage);
  int Place(int64_t version) const;
  int64_t ReadersOf(int64_t version) const;
  void DropDead();

  bool in_place_;  // from version 0 on every reader reads the newest: one buffer does
  bool flushes_;   // and none of them before an update of its own batch
  int buffers_;
  std::vector<Readers> readers_;
  int64_t oldest_ = 0;  // version of batch t is max(oldest, t − delay)
  int64_t steps_ = 0;
  int64_t newest_ = 0;
  std::vector<Live> live_;  // ascending version
  int peak_ = 1;
};

}  // namespace pipelag
