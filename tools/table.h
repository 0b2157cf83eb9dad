// Aligned text: tables, short lists, figures. Must not know what the figures mean.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/units.h"
#include "traces/metrics.h"

namespace pipelag {

/// Rows of cells, the first being the header; the first column is flush left, the others right.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

/// "8" if all are equal, "4,3,2,1" for a few, else "1..64".
std::string FormatFew(std::span<const int64_t> values);

/// The same of shares, "5.5,4.5", four digits each.
std::string FormatFewShares(std::span<const double> values);

/// "0-3,5".
std::string FormatRanges(std::span<const int> ascending);

/// "1 rank", "4 micro-batches".
std::string Counted(int64_t count, std::string_view noun);

/// "27.27 %".
std::string FormatShare(double share);

/// "1.234 T": of FLOPs, four digits with a decimal prefix.
std::string FormatFlops(double flops);

/// "24.00 ms", and the exact fraction behind it where it is not whole nanoseconds.
std::string FormatStepTime(StepTime time);

}  // namespace pipelag
