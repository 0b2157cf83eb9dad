#include "models/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "models/compute_rate.h"
#include "models/error.h"

namespace pipelag {
namespace {

__extension__ using Wide = __int128;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

struct Unit {
  std::string_view name;
  int64_t numerator;
  int64_t denominator;
};

constexpr std::array kDurations = {Unit{"ns", 1, 1}, Unit{"us", 1'000, 1}, Unit{"ms", 1'000'000, 1},
                                   Unit{"s", 1'000'000'000, 1}};
constexpr std::array kSizes = {Unit{"B", 1, 1},           Unit{"KB", 1'000, 1},
                               Unit{"MB", 1'000'000, 1},  Unit{"GB", 1'000'000'000, 1},
                               Unit{"KiB", 1LL << 10, 1}, Unit{"MiB", 1LL << 20, 1},
                               Unit{"GiB", 1LL << 30, 1}};
constexpr std::array kRates = {Unit{"B/s", 1, 1},
                               Unit{"KB/s", 1'000, 1},
                               Unit{"MB/s", 1'000'000, 1},
                               Unit{"GB/s", 1'000'000'000, 1},
                               Unit{"TB/s", 1'000'000'000'000, 1},
                               Unit{"KiB/s", 1LL << 10, 1},
                               Unit{"MiB/s", 1LL << 20, 1},
                               Unit{"GiB/s", 1LL << 30, 1},
                               Unit{"Mbit/s", 1'000'000, 8},
                               Unit{"Gbit/s", 1'000'000'000, 8}};

constexpr std::array kComputeRates = {
    Unit{"MFLOP/s", 1'000'000, 1}, Unit{"GFLOP/s", 1'000'000'000, 1},
    Unit{"TFLOP/s", 1'000'000'000'000, 1}, Unit{"PFLOP/s", 1'000'000'000'000'000, 1}};

/// Decimal digits with an optional fraction, exactly: value = digits / scale.
struct Decimal {
  Wide digits = 0;
  Wide scale = 1;
};

template <size_t n>
int64_t ParseQuantity(std::string_view text, const std::array<Unit, n>& units,
                      std::string_view what, std::string_view example) {
  const auto fail = [&](std::string_view why) -> Error {
    return Error(fmt::format("'{}' is not a {}: {} (an example is {})", text, what, why, example));
  };
  Decimal number;
  size_t i = 0;
  bool any_digit = false;
  bool fraction = false;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !fraction) {
      fraction = true;
    } else if (c >= '0' && c <= '9') {
      any_digit = true;
      number.digits = number.digits * 10 + (c - '0');
      if (fraction) number.scale *= 10;
      if (number.digits > kLargest || number.scale > kLargest) throw fail("it has too many digits");
    } else {
      break;
    }
  }
  if (!text.empty() && text[0] == '-') throw fail("it is negative");
  if (!any_digit) throw fail("it does not start with a number");
  const std::string_view name = text.substr(i);
  if (name.empty()) {
    if (number.digits == 0) return 0;
    throw fail("its unit is missing");
  }
  for (const Unit& unit : units) {
    if (unit.name != name) continue;
    const Wide numerator = number.digits * unit.numerator;
    const Wide denominator = number.scale * unit.denominator;
    if (numerator % denominator != 0) throw fail("it is finer than the smallest unit");
    if (numerator / denominator > kLargest) throw fail("it is too large");
    return static_cast<int64_t>(numerator / denominator);
  }
  std::string known;
  for (const Unit& unit : units) {
    known += known.empty() ? "" : " ";
    known += unit.name;
  }
  throw fail(fmt::format("its unit '{}' is none of {}", name, known));
}

}  // namespace

Nanoseconds TransferTime(Bytes bytes, Bandwidth bandwidth) {
  if (bandwidth.bytes_per_second == 0) return Nanoseconds{0};
  const Wide rate = bandwidth.bytes_per_second;
  const Wide time = (static_cast<Wide>(bytes) * 1'000'000'000 + rate - 1) / rate;
  if (time > kLargest) {
    throw Error(fmt::format("moving {} bytes at {} bytes/s takes longer than 292 years", bytes,
                            bandwidth.bytes_per_second));
  }
  return Nanoseconds{static_cast<int64_t>(time)};
}

Nanoseconds ParseDuration(std::string_view text) {
  return Nanoseconds{ParseQuantity(text, kDurations, "time", "1.5ms")};
}

Bytes ParseBytes(std::string_view text) { return ParseQuantity(text, kSizes, "size", "16MiB"); }

Bandwidth ParseBandwidth(std::string_view text) {
  if (text == "unlimited") return Bandwidth{};
  const int64_t rate = ParseQuantity(text, kRates, "bandwidth", "25GB/s");
  if (rate == 0) {
    throw Error(fmt::format("'{}' is not a bandwidth: it is zero (an example is 25GB/s)", text));
  }
  return Bandwidth{rate};
}

ComputeRate ParseComputeRate(std::string_view text) {
  const int64_t rate = ParseQuantity(text, kComputeRates, "compute rate", "400TFLOP/s");
  if (rate == 0) {
    throw Error(
        fmt::format("'{}' is not a compute rate: it is zero (an example is 400TFLOP/s)", text));
  }
  return ComputeRate{rate};
}

int64_t ParseInteger(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    throw Error(fmt::format("'{}' is too large a number", text));
  }
  if (error != std::errc() || rest != end) {
    throw Error(fmt::format("'{}' is not a whole number", text));
  }
  return value;
}

double ParseDecimal(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || !std::isfinite(value)) {
    throw Error(fmt::format("'{}' is not a decimal number", text));
  }
  return value;
}

std::string FormatDuration(Nanoseconds time) {
  const auto ns = static_cast<double>(time.count());
  const double size = ns < 0 ? -ns : ns;
  if (size < 1e3) return fmt::format("{} ns", time.count());
  if (size < 1e6) return fmt::format("{:.2f} us", ns / 1e3);
  if (size < 1e9) return fmt::format("{:.2f} ms", ns / 1e6);
  return fmt::format("{:.2f} s", ns / 1e9);
}

std::string FormatBytes(Bytes bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < (1LL << 10)) return fmt::format("{} B", bytes);
  if (bytes < (1LL << 20)) return fmt::format("{:.1f} KiB", value / 0x1p10);
  if (bytes < (1LL << 30)) return fmt::format("{:.1f} MiB", value / 0x1p20);
  return fmt::format("{:.2f} GiB", value / 0x1p30);
}

}  // namespace pipelag
