// Files of named tensors in the safetensors format: eight bytes of header length, a JSON header,
// then the tensors' bytes (github.com/huggingface/safetensors, README). Knows no network.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/input_file.h"

namespace pipelag {

/// A tensor to be written, row-major. Its bytes are borrowed until it is.
struct OutgoingTensor {
  std::string name;
  std::string type;  ///< as the format names it: F32, F64, I64, …
  std::vector<int64_t> shape;
  const void* values = nullptr;
  /// The values are F32 and lie as the transpose of `shape`, which has two dimensions.
  bool transposed = false;
};

/// A file as it was written.
struct WrittenFile {
  int64_t bytes = 0;
  std::string sha256;
};

/// Writes atomically; `metadata` goes to the header's "__metadata__". Throws Error naming the file.
WrittenFile WriteSafetensors(const std::filesystem::path& file,
                             const std::vector<OutgoingTensor>& tensors,
                             const std::map<std::string, std::string>& metadata);

/// One tensor of a file.
struct FileTensor {
  std::string type;
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< its first byte's place in the file
  int64_t size = 0;   ///< in bytes

  int64_t elements() const;
};

/// A file that stays open, checked: known types, sizes that fit, no name twice, no overlap, no
/// hole, nothing behind the last tensor. Throws Error naming file and tensor for one that is not
/// so.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& file);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, FileTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Throws Error if there is none of that name.
  const FileTensor& At(const std::string& name) const;

  /// Reads an F32 tensor of the shape; with `transpose` of the transposed shape, and transposes.
  /// Throws Error naming file and tensor if it is of another shape or type, and as InputFile::Read.
  void Read(const std::string& name, const std::vector<int64_t>& shape, bool transpose,
            float* to) const;
  void Read(const std::string& name, const std::vector<int64_t>& shape, double* to) const;

 private:
  const FileTensor& Of(const std::string& name, std::string_view type,
                       const std::vector<int64_t>& shape) const;

  InputFile file_;
  std::map<std::string, FileTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Of a tensor's shape, for people: "[3, 4]".
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace pipelag
