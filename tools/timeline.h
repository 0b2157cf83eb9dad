// A run drawn in characters: a row per rank, time to the right. Must not know who produced it.
#pragma once

#include <string>

#include "traces/trace.h"

namespace pipelag {

/// At most `columns` wide. Drawn to scale: exactly where every instant of the run falls on a
/// column; else each column shows what takes most of it. A run of many steps too fine for that is
/// drawn from its start, as far as it goes. `trace` must be sorted.
std::string FormatTimeline(const Trace& trace, int columns);

/// Of the terminal that stdout is, or 100.
int TerminalColumns();

}  // namespace pipelag
