#include "runtime/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <span>

#include "models/error.h"
#include "models/file.h"
#include "models/json_file.h"
#include "runtime/sha256.h"

namespace pipelag {

static_assert(std::endian::native == std::endian::little, "tensors lie in files as in memory");

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMostHeader = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

/// Bytes of one element, 0 for a type that there is not.
int64_t WidthOf(std::string_view type) {
  constexpr std::pair<std::string_view, int64_t> kWidths[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
      {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
      {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};
  for (const auto& [name, width] : kWidths) {
    if (name == type) return width;
  }
  return 0;
}

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

void Transpose(const float* from, int64_t rows, int64_t cols, float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) to[j * rows + i] = from[i * cols + j];
  }
}

/// Of the values of a tensor in memory.
template <class Real>
std::span<std::byte> BytesOf(const FileTensor& tensor, Real* values) {
  return {reinterpret_cast<std::byte*>(values), static_cast<size_t>(tensor.size)};
}

std::string HeaderOf(const std::vector<OutgoingTensor>& tensors,
                     const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  int64_t at = 0;
  for (const OutgoingTensor& tensor : tensors) {
    const int64_t end = at + ElementsOf(tensor.shape) * WidthOf(tensor.type);
    CHECK(!header.contains(tensor.name));
    header[tensor.name] = {
        {"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  // So that the tensors begin at a multiple of eight.
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  return text;
}

/// One entry of a header, and where its bytes lie.
struct Entry {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Reads headers; every refusal names the file.
class HeaderReader {
 public:
  explicit HeaderReader(const InputFile& file) : file_(file) {}

  void Read(std::map<std::string, FileTensor>& tensors,
            std::map<std::string, std::string>& metadata) {
    const nlohmann::json header = Header();
    for (const auto& [name, entry] : header.items()) {
      if (name == kMetadata) {
        ReadMetadata(entry, metadata);
      } else {
        ReadEntry(name, entry, tensors);
      }
    }
    CheckCovered();
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    throw Error(fmt::format("{}: {}", file_.path().string(), why));
  }

  nlohmann::json Header() {
    const auto size = static_cast<uint64_t>(file_.size());
    if (size < kLengthBytes) {
      Refuse(fmt::format("is no safetensors file: {} bytes hold no header", size));
    }
    uint64_t length = 0;
    file_.Read(0, std::as_writable_bytes(std::span(&length, 1)));
    if (length > kMostHeader) {
      Refuse(fmt::format("is no safetensors file: its header would have {} bytes", length));
    }
    if (length > size - kLengthBytes) {
      Refuse(fmt::format("is too short: its header has {} bytes, but only {} follow", length,
                         size - kLengthBytes));
    }
    std::string text(length, '\0');
    file_.Read(kLengthBytes, std::as_writable_bytes(std::span(text)));
    if (!text.starts_with('{')) Refuse("is no safetensors file: its header is no JSON object");
    data_begin_ = static_cast<int64_t>(kLengthBytes + length);
    data_size_ = size - kLengthBytes - length;
    return ParseJson(text, file_.path().string() + ": header");
  }

  void ReadMetadata(const nlohmann::json& entry, std::map<std::string, std::string>& metadata) {
    if (!entry.is_object()) Refuse("__metadata__ is no object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) Refuse(fmt::format("__metadata__: {} is no string", key));
      metadata[key] = value.get<std::string>();
    }
  }

  void ReadEntry(const std::string& name, const nlohmann::json& entry,
                 std::map<std::string, FileTensor>& tensors) {
    const auto refuse = [&](const std::string& why) {
      Refuse(fmt::format("tensor {}: {}", name, why));
    };
    if (!entry.is_object()) refuse("is no object");
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!entry.contains(key)) refuse(fmt::format("has no {}", key));
    }
    FileTensor tensor;
    if (!entry["dtype"].is_string()) refuse("its dtype is no string");
    tensor.type = entry["dtype"].get<std::string>();
    const int64_t width = WidthOf(tensor.type);
    if (width == 0) refuse(fmt::format("dtype {} is not known", tensor.type));
    int64_t size = width;
    if (!entry["shape"].is_array()) refuse("its shape is no list");
    for (const nlohmann::json& extent : entry["shape"]) {
      if (!extent.is_number_unsigned()) refuse("its shape is no list of counts");
      tensor.shape.push_back(static_cast<int64_t>(extent.get<uint64_t>()));
      if (tensor.shape.back() < 0 || __builtin_mul_overflow(size, tensor.shape.back(), &size)) {
        refuse(fmt::format("shape {} is too large", ShapeText(tensor.shape)));
      }
    }
    const nlohmann::json& offsets = entry["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      refuse("its data_offsets are not two counts");
    }
    const auto begin = offsets[0].get<uint64_t>();
    const auto end = offsets[1].get<uint64_t>();
    if (begin > end) refuse(fmt::format("ends at {}, before its begin at {}", end, begin));
    if (end > data_size_) {
      refuse(fmt::format("ends at byte {} of the data, but there are only {}", end, data_size_));
    }
    tensor.size = static_cast<int64_t>(end - begin);
    if (tensor.size != size) {
      refuse(fmt::format("{} {} takes {} bytes, but it has {}", tensor.type,
                         ShapeText(tensor.shape), size, tensor.size));
    }
    tensor.begin = data_begin_ + static_cast<int64_t>(begin);
    entries_.push_back({name, static_cast<int64_t>(begin), static_cast<int64_t>(end)});
    tensors[name] = std::move(tensor);
  }

  void CheckCovered() {
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    int64_t covered = 0;
    for (const Entry& entry : entries_) {
      if (entry.begin < covered) {
        Refuse(fmt::format("tensor {}: begins at byte {} of the data, within the one before it",
                           entry.name, entry.begin));
      }
      if (entry.begin > covered) {
        Refuse(fmt::format("tensor {}: begins at byte {} of the data, behind a hole of {} bytes",
                           entry.name, entry.begin, entry.begin - covered));
      }
      covered = entry.end;
    }
    const auto size = static_cast<int64_t>(data_size_);
    if (covered != size) {
      Refuse(fmt::format("{} bytes behind the last tensor belong to none", size - covered));
    }
  }

  const InputFile& file_;
  int64_t data_begin_ = 0;  // in the file
  uint64_t data_size_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

int64_t FileTensor::elements() const { return ElementsOf(shape); }

WrittenFile WriteSafetensors(const std::filesystem::path& file,
                             const std::vector<OutgoingTensor>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  OutputFile output(file);
  Sha256Sum sum;
  WrittenFile written;
  const auto put = [&](const void* bytes, size_t size) {
    output.Write({static_cast<const char*>(bytes), size});
    sum.Add(bytes, size);
    written.bytes += static_cast<int64_t>(size);
  };
  const std::string header = HeaderOf(tensors, metadata);
  const uint64_t length = header.size();
  put(&length, sizeof length);
  put(header.data(), header.size());
  std::vector<float> turned;
  for (const OutgoingTensor& tensor : tensors) {
    const int64_t elements = ElementsOf(tensor.shape);
    const void* values = tensor.values;
    if (tensor.transposed) {
      CHECK(tensor.shape.size() == 2 && tensor.type == "F32");
      turned.resize(static_cast<size_t>(elements));
      Transpose(static_cast<const float*>(values), tensor.shape[1], tensor.shape[0], turned.data());
      values = turned.data();
    }
    put(values, static_cast<size_t>(elements * WidthOf(tensor.type)));
  }
  output.Commit();
  written.sha256 = sum.Finish();
  return written;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : file_(file) {
  HeaderReader(file_).Read(tensors_, metadata_);
}

const FileTensor& SafetensorsFile::At(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(fmt::format("{}: holds no tensor {}", path().string(), name));
  }
  return found->second;
}

const FileTensor& SafetensorsFile::Of(const std::string& name, std::string_view type,
                                      const std::vector<int64_t>& shape) const {
  const FileTensor& tensor = At(name);
  if (tensor.type != type || tensor.shape != shape) {
    throw Error(fmt::format("{}: tensor {} is {} {}, but {} {} is needed", path().string(), name,
                            tensor.type, ShapeText(tensor.shape), type, ShapeText(shape)));
  }
  return tensor;
}

void SafetensorsFile::Read(const std::string& name, const std::vector<int64_t>& shape,
                           bool transpose, float* to) const {
  if (!transpose) {
    const FileTensor& tensor = Of(name, "F32", shape);
    file_.Read(tensor.begin, BytesOf(tensor, to));
    return;
  }
  CHECK(shape.size() == 2);
  const FileTensor& tensor = Of(name, "F32", {shape[1], shape[0]});
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  file_.Read(tensor.begin, BytesOf(tensor, values.data()));
  Transpose(values.data(), shape[1], shape[0], to);
}

void SafetensorsFile::Read(const std::string& name, const std::vector<int64_t>& shape,
                           double* to) const {
  const FileTensor& tensor = Of(name, "F64", shape);
  file_.Read(tensor.begin, BytesOf(tensor, to));
}

}  // namespace pipelag
