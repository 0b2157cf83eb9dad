// Chrome trace JSON (object form), both ways: for chrome://tracing, Perfetto and speedscope, and
// lossless for ourselves. Knows what viewers can stand: small ids, events sorted by time, on one
// thread never two events that overlap in part. Knows nothing of who produced a trace.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "traces/memory.h"
#include "traces/trace.h"

namespace pipelag {

struct ChromeOptions {
  bool flows = false;          ///< arrows from SEND to RECV; thousands of them make viewers slow
  bool critical_path = false;  ///< as a process of its own behind the ranks; reading leaves it out
  /// A counter "memory" per rank, an entry each; nullptr: none. Of a single trace only.
  const std::vector<RankMemory>* memory = nullptr;
};

/// The JSON text: {"displayTimeUnit", "pipelag": {the run}, "traceEvents": […]}, a line per event.
///
/// * A rank is a process (pid = rank), a lane a thread: tid = pid + LaneNumber. Compute is then the
///   main thread (tid = pid), which Perfetto puts first; names and sort indices are there as well.
/// * A span is a complete event "X" named <stage><kind><micro-batch>, ts and dur in microseconds
/// with
///   exact nanosecond fractions, its other fields in args where they differ from Span's defaults.
/// * The two halves of an OVERLAP are one event, "0F3+0B1", with args.first and args.second.
/// * Latency occupies no lane, so deliveries on a receive lane may overlap in time. There the event
///   shows the span up to the start of the next one on its lane (the wire is free by then), and
///   args.end_ns holds its true end. Hence events of one thread are always disjoint.
/// * They stay disjoint in a viewer's doubles, and a zero-length span stays in its place: an event
///   that touches the next one is written less than half a nanosecond short, one that starts at the
///   same instant as the one before as much late (in runs of up to days). Round to nanoseconds.
/// * Counters: activations in flight per rank, newest weight version per stage; memory if given.
/// * The critical path is a process "critical path" with one thread, pid = tid = number of ranks.
///   Its events have the category "critical path" and end a hair early, as all that touch.
///
/// `trace.spans` need not be sorted; ranks and peers must lie in [0, ranks).
std::string ToChrome(const Trace& trace, const ChromeOptions& options = {});

/// Several traces in one file, to be looked at: processes are numbered on and named
/// "<label> rank r". Cannot be read back.
std::string ToChrome(const std::vector<std::pair<std::string, const Trace*>>& labelled,
                     const ChromeOptions& options = {});

/// Reads back what ToChrome(trace) wrote, losslessly (a sorted trace comes back as it was),
/// whatever the order of keys and events. Throws Error naming `file` and the place (event index and
/// key) for anything else, truncated or empty files included.
Trace ReadChrome(const std::filesystem::path& file);
/// ReadChrome, and an Error where a rank computes two things at once: no run does, and no figure of
/// such a trace would mean anything.
Trace ReadRun(const std::filesystem::path& file);

Trace ParseChrome(const std::string& text, const std::string& file_name);

}  // namespace pipelag
