// Chrome trace JSON (object form), both ways: for chrome://tracing, Perfetto and speedscope, and
// lossless for ourselves. Follows reference viewers: one tid per lane, pid = rank, events sorted by
// time, metadata names, counters, flows on demand.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace pipelag {

struct ChromeOptions {
  bool flows = false;  ///< arrows from SEND to RECV; thousands of them make viewers slow
};

/// The JSON text. Times in microseconds with exact nanosecond fractions.
std::string ToChrome(const Trace& trace, const ChromeOptions& options = {});

/// Several traces in one file: processes are numbered on and named "<label> rank r".
std::string ToChrome(const std::vector<std::pair<std::string, const Trace*>>& labelled,
                     const ChromeOptions& options = {});

/// Reads back what ToChrome(trace) wrote, losslessly. Throws Error naming `file` and the place
/// (event index and key) for anything else, truncated or empty files included.
Trace ReadChrome(const std::filesystem::path& file);
Trace ParseChrome(const std::string& text, const std::string& file_name);

}  // namespace pipelag
