// Messages and collectives between ranks of one process whose buffers are on its GPUs: one GPU for
// several ranks, or peers. The second half of a message to be posted has it copied, by a stream of
// its lane. Knows no CUDA.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/device/device_event.h"
#include "runtime/transport.h"

namespace pipelag {

/// Enqueues the copy of one message of a lane, instead of the device's own.
using MoveMessage =
    std::function<void(int lane, Stream stream, void* to, const void* from, size_t bytes)>;

/// What all ranks of a run share. Outlives its ends.
class DeviceHub {
 public:
  /// `clocks`: of each rank's device, borrowed; ranks on one device have one clock.
  /// `summand_bytes`: the most that a summand of each group has, on any rank.
  DeviceHub(const Program& program, const RunControl& control,
            const std::vector<DeviceClock*>& clocks, const std::vector<size_t>& summand_bytes,
            MoveMessage move = {});
  ~DeviceHub();
  DeviceHub(const DeviceHub&) = delete;
  DeviceHub& operator=(const DeviceHub&) = delete;

  /// The end of one rank: used by that rank's thread alone. Values of sums are device memory.
  std::unique_ptr<Transport> End(int rank);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace pipelag
