// What whatever goes wrong comes to: a sentence on stderr and an exit code. Must not know what any
// subcommand does.
#pragma once

#include <exception>

namespace pipelag {

/// Prints what the exception says and returns the exit code: 2 for bad input or environment, 3 for
/// a bug of ours. Of another rank's failure, which that one reports, it prints nothing.
int ReportFailure(const std::exception_ptr& failure);

/// The same from any thread, and then ends the process, whatever its other threads are at. No file
/// is left half written.
[[noreturn]] void EndProcess(const std::exception_ptr& failure);

}  // namespace pipelag
