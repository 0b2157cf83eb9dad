// What the processes of a run tell each other beside the run itself: that one has finished, that
// the loss has diverged, or that all have to stop and why.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <vector>

#include "runtime/processes/process_link.h"

namespace pipelag {

/// Thrown by the ranks that stop because of another one's error, which that one reports.
class StoppedByPeer : public std::exception {
 public:
  /// `name`: of the rank, in front of what it says.
  StoppedByPeer(int rank, std::string reason, const std::string& name)
      : rank_(rank), reason_(std::move(reason)), text_(name + ": " + reason_) {}
  const char* what() const noexcept override { return text_.c_str(); }
  int rank() const { return rank_; }
  const std::string& reason() const { return reason_; }

 private:
  int rank_;
  std::string reason_;
  std::string text_;
};

/// One process's end; from construction on it stops the run when another process says so.
class Notes {
 public:
  /// Uses `tag`, borrows the link.
  Notes(ProcessLink& link, int tag);

  /// The first step known to have diverged, here or elsewhere; kNever.
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  int64_t diverged() const { return diverged_.load(std::memory_order_acquire); }
  /// As Diverged has it, of that step; empty if nobody knew.
  std::string diverged_where() const;
  /// Lets all know. The run goes on, but what is computed no longer matters.
  void TellDiverged(int64_t step, const std::string& where);

  /// Tells all others that this process has done its part, and waits until all have said so.
  /// Throws as Event::Wait does.
  void FinishTogether();
  /// Tells all others why the run has to stop, as far as they can still be reached in a short time.
  /// What another one said is passed on: who then sees this process gone knows already why.
  void TellToStop(const std::exception_ptr& error) noexcept;

 private:
  enum class Kind : int32_t { kFinished, kDiverged, kFailed };
  struct Note {
    Kind kind = Kind::kFinished;
    int32_t rank = 0;
    int64_t step = 0;     // of kDiverged
    char text[496] = {};  // why, or where
  };
  struct Incoming {
    int peer = 0;
    Note note;
    Wire::Handle handle = 0;
  };

  bool Listen(Incoming& from, Wire& wire);
  void Heed(const Note& note);
  void HearOfDivergence(const Note& note);
  Note NoteOf(const std::exception_ptr& error) const;
  std::vector<EventPtr> TellAll(Note note);

  ProcessLink& link_;
  int tag_;
  int rank_;
  std::mutex telling_;
  std::atomic<int64_t> diverged_{kNever};
  mutable std::mutex where_mutex_;
  std::string where_;
  std::vector<Incoming> incoming_;
  std::vector<EventPtr> finished_;
  std::list<Note> sent_;  // stay while they are under way
};

}  // namespace pipelag
