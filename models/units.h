// Quantities with units: how they are held (64-bit integers), read from text and shown. The one
// place that knows unit names. Nothing here rounds silently: what an integer cannot hold is an
// Error.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace pipelag {

using Nanoseconds = std::chrono::duration<int64_t, std::nano>;
using Bytes = int64_t;

/// A data rate. Zero means "unlimited": bytes take no time.
struct Bandwidth {
  int64_t bytes_per_second = 0;
  bool operator==(const Bandwidth&) const = default;
};

/// bytes ÷ rate, rounded up to whole nanoseconds; zero for an unlimited rate.
Nanoseconds TransferTime(Bytes bytes, Bandwidth bandwidth);

/// "1.5ms", "8us", "30ns", "2s", "0". Not negative, a unit is required except for a plain 0, at
/// most nanosecond resolution. Throws Error with one sentence that quotes `text`.
Nanoseconds ParseDuration(std::string_view text);

/// "16MiB", "4KB", "512B", "1.5GiB"; decimal (KB, MB, GB) and binary (KiB, MiB, GiB) units. As
/// above.
Bytes ParseBytes(std::string_view text);

/// "25GB/s", "400Gbit/s", "12.5MiB/s"; "unlimited" for no limit. Zero is an Error. As above.
Bandwidth ParseBandwidth(std::string_view text);

/// A whole number, all of `text`; Error otherwise.
int64_t ParseInteger(std::string_view text);

/// A finite decimal number, all of `text`, as in "0.001" or "3e-4"; Error otherwise.
double ParseDecimal(std::string_view text);

/// Three to four significant figures with a fitting unit, for people: "33.00 ms", "1.25 us".
std::string FormatDuration(Nanoseconds time);
std::string FormatBytes(Bytes bytes);

}  // namespace pipelag
