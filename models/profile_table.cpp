// Tables of layer times: a header and a row per layer.
#include <optional>

#include "models/file.h"
#include "models/names.h"
#include "models/profile.h"
#include "models/profile_text.h"

namespace pipelag {
namespace {

constexpr std::string_view kColumns[] = {"layer",
                                         "forward_ms",
                                         "backward_ms",
                                         "backward_input_ms",
                                         "backward_weight_ms",
                                         "activation_bytes",
                                         "message_bytes",
                                         "weight_bytes",
                                         "gradient_bytes",
                                         "optimizer_bytes"};

class TableReader {
 public:
  explicit TableReader(const std::filesystem::path& file) : file_(file) {}

  std::vector<NetworkPart> Read() {
    const std::string text = ReadFile(file_);
    size_t number = 0;
    for (const std::string_view line : SplitAt(text, "\n")) {
      const TextPlace place{file_, ++number};
      if (Trimmed(line).empty()) continue;
      if (header_.empty()) {
        ReadHeader(place, line);
      } else {
        parts_.push_back(ReadRow(place, SplitAt(line, ",")));
      }
    }
    if (parts_.empty()) throw Error(fmt::format("{}: holds no layers", file_.string()));
    if (parts_.size() > 1 && parts_.front().name == "embedding") parts_.front().layer = false;
    if (parts_.size() > 1 && parts_.back().name == "head") parts_.back().layer = false;
    return std::move(parts_);
  }

 private:
  void ReadHeader(const TextPlace& place, std::string_view line) {
    for (const std::string_view entry : SplitAt(line, ",")) {
      const std::string name(Trimmed(entry));
      if (std::find(std::begin(kColumns), std::end(kColumns), name) == std::end(kColumns)) {
        place.Fail(fmt::format("there is no column '{}'; the nearest is '{}'", name,
                               Nearest(name, kColumns)));
      }
      if (Has(name)) place.Fail(fmt::format("the column '{}' is there twice", name));
      header_.push_back(name);
    }
    for (const char* needed : {"layer", "forward_ms"}) {
      if (!Has(needed)) place.Fail(fmt::format("the column '{}' is missing", needed));
    }
    if (Has("backward_input_ms") != Has("backward_weight_ms")) {
      place.Fail("backward_input_ms and backward_weight_ms are given together or not at all");
    }
    if (!Has("backward_ms") && !Has("backward_input_ms")) {
      place.Fail("the column 'backward_ms' is missing");
    }
  }

  bool Has(std::string_view name) const {
    return std::find(header_.begin(), header_.end(), name) != header_.end();
  }

  NetworkPart ReadRow(const TextPlace& place, const std::vector<std::string_view>& cells) const {
    if (cells.size() != header_.size()) {
      place.Fail(fmt::format("has {} entries, but the header {}", cells.size(), header_.size()));
    }
    const auto cell = [&](std::string_view name) -> std::optional<std::string_view> {
      const auto found = std::find(header_.begin(), header_.end(), name);
      if (found == header_.end()) return std::nullopt;
      return Trimmed(cells[static_cast<size_t>(found - header_.begin())]);
    };
    const auto quantity = [&](std::string_view name, double scale) {
      const auto text = cell(name);
      return text ? ReadQuantity(place, name, *text, scale) : 0;
    };
    const auto time = [&](std::string_view name) {
      constexpr double kMillisecond = 1e6;
      return Nanoseconds{quantity(name, kMillisecond)};
    };
    NetworkPart part;
    part.name = *cell("layer");
    part.forward = time("forward_ms");
    part.backward_input = time("backward_input_ms");
    part.backward_weight = time("backward_weight_ms");
    part.backward =
        Has("backward_ms") ? time("backward_ms") : part.backward_input + part.backward_weight;
    part.memory.activation = quantity("activation_bytes", 1);
    part.memory.message = quantity("message_bytes", 1);
    part.memory.weights = quantity("weight_bytes", 1);
    part.memory.gradients =
        Has("gradient_bytes") ? quantity("gradient_bytes", 1) : part.memory.weights;
    part.memory.optimizer = quantity("optimizer_bytes", 1);
    return part;
  }

  const std::filesystem::path& file_;
  std::vector<std::string> header_;
  std::vector<NetworkPart> parts_;
};

}  // namespace

std::vector<NetworkPart> ReadLayerTimes(const std::filesystem::path& file) {
  return TableReader(file).Read();
}

}  // namespace pipelag
