// Messages and collectives between the threads of one process. The second half of a message to be
// posted copies it, on its own thread.
#pragma once

#include <memory>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/run_control.h"
#include "runtime/transport.h"

namespace pipelag {

/// What all ranks of a run share. Outlives its ends and their events.
class LocalHub {
 public:
  LocalHub(const Program& program, const RunControl& control);
  ~LocalHub();
  LocalHub(const LocalHub&) = delete;
  LocalHub& operator=(const LocalHub&) = delete;

  /// The end of one rank: used by that rank's thread alone.
  std::unique_ptr<Transport> End(int rank);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace pipelag
