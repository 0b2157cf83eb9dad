// Runs a program for real, with real messages between threads, but with devices and links that only
// take their time: schedules of many ranks on few cores. Knows no network.
#pragma once

#include "models/costs.h"
#include "models/schedule/program.h"
#include "runtime/cpu/threads.h"
#include "traces/trace.h"

namespace pipelag {

/// The trace of the run. Its lanes are those of the simulator: compute by `costs`, messages of
/// `costs.activation_bytes` over links of their bandwidth and latency, reductions of gradients in
/// `reduction` once all members are ready, other collectives in no time. Pairs that overlap are
/// done one after the other (Unpaired). `deadline`: of one wait for another rank. Throws Error for
/// a schedule that the runtime cannot run, if the costs are not for its stages or lack a time, or
/// if a rank fails.
Trace Emulate(const Program& program, const Costs& costs, Nanoseconds reduction,
              Nanoseconds deadline, const Interposer& interpose = {});

/// The same with stages that keep a core busy for their time, each thread on any of the first
/// `cores` that the calling one may use (OnCores): ranks slow each other. A span lasts from when
/// its action could start.
Trace EmulateOnCores(const Program& program, const Costs& costs, int64_t cores,
                     Nanoseconds reduction, Nanoseconds deadline, const Interposer& interpose = {});

}  // namespace pipelag
