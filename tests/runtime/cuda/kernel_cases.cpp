// The list of all cases.
#include <utility>

#include "tests/runtime/cuda/attention_cases.h"
#include "tests/runtime/cuda/buffer_cases.h"
#include "tests/runtime/cuda/elementwise_cases.h"
#include "tests/runtime/cuda/kernel_case.h"
#include "tests/runtime/cuda/norm_cases.h"
#include "tests/runtime/cuda/token_cases.h"

namespace pipelag::cuda {
namespace {

class CaseList {
 public:
  explicit CaseList(bool compared) : compared_(compared) {}

  template <class Make, class... Sizes>
  void Add(std::string name, Make make, const Sizes&... sizes) {
    const bool compared = compared_;
    cases_.push_back(
        {std::move(name), [=](KernelMemory& memory) { return make(memory, compared, sizes...); }});
  }

  std::vector<NamedCase> Take() { return std::move(cases_); }

 private:
  bool compared_;
  std::vector<NamedCase> cases_;
};

std::string Name(const char* kernel, const char* type, const std::string& size) {
  return std::string(kernel) + "_" + type + "_" + size;
}

std::string Size2(int64_t rows, int64_t cols) {
  return std::to_string(rows) + "x" + std::to_string(cols);
}

std::string NameOf(const NormSize& size) {
  return (size.kind == NormChoice::kRms ? "rms_" : "layer_") + Size2(size.rows, size.cols) +
         (size.optional ? "" : "_bare");
}

std::string NameOf(const MatrixSize& size) {
  return Size2(size.rows, size.cols) + (size.bias ? "" : "_bare");
}

std::string NameOf(const EmbedSize& size) {
  return Size2(size.batch, size.sequence) + "x" + std::to_string(size.cols) +
         (size.positions ? "" : "_bare");
}

std::string NameOf(const AttentionShape& shape) {
  return Size2(shape.batch, shape.sequence) + "_heads" + std::to_string(shape.heads) + "of" +
         std::to_string(shape.kv_heads) + "x" + std::to_string(shape.head_size);
}

template <class T>
void AddNorms(CaseList& list, const char* type, const NormSize& size) {
  const std::string name = NameOf(size);
  list.Add(Name("NormForward", type, name), NormForwardCase<T>, size);
  list.Add(Name("NormBackwardInput", type, name), NormBackwardInputCase<T>, size);
  list.Add(Name("NormBackwardWeight", type, name), NormBackwardWeightCase<T>, size);
}

template <class T>
void AddElementwise(CaseList& list, const char* type, const MatrixSize& size) {
  const std::string name = NameOf(size);
  list.Add(Name("AddBias", type, name), AddBiasCase<T>, size);
  list.Add(Name("AddBiasAndResidual", type, name), AddBiasAndResidualCase<T>, size);
  list.Add(Name("AddColumnSums", type, name), ColumnSumsCase<T>, size);
  list.Add(Name("GeluForward", type, name), GeluForwardCase<T>, size);
  list.Add(Name("GeluBackward", type, name), GeluBackwardCase<T>, size);
  list.Add(Name("SwiGluForward", type, name), SwiGluForwardCase<T>, size);
  list.Add(Name("SwiGluBackward", type, name), SwiGluBackwardCase<T>, size);
}

template <class T>
void AddTokens(CaseList& list, const char* type, const EmbedSize& size) {
  list.Add(Name("EmbedForward", type, NameOf(size)), EmbedForwardCase<T>, size);
  list.Add(Name("EmbedBackward", type, NameOf(size)), EmbedBackwardCase<T>, size);
}

template <class T>
void AddLogits(CaseList& list, const char* type, const LogitsSize& size) {
  const std::string name = Size2(size.rows, size.cols) + "of" + std::to_string(size.stride);
  list.Add(Name("CrossEntropyForward", type, name), CrossEntropyForwardCase<T>, size);
  list.Add(Name("CrossEntropyBackward", type, name), CrossEntropyBackwardCase<T>, size);
}

template <class T>
void AddAttention(CaseList& list, const char* type, const AttentionShape& shape) {
  list.Add(Name("AttentionForward", type, NameOf(shape)), AttentionForwardCase<T>, shape);
  list.Add(Name("AttentionBackward", type, NameOf(shape)), AttentionBackwardCase<T>, shape);
}

template <class T>
void AddRotation(CaseList& list, const char* type, const RotationSize& size) {
  list.Add(Name("Rotate", type,
                Size2(size.batch, size.sequence) + "x" + Size2(size.heads, size.head_size)),
           RotateCase<T>, size);
}

template <class T>
void AddSmall(CaseList& list, const char* type) {
  for (const NormChoice kind : {NormChoice::kLayer, NormChoice::kRms}) {
    AddNorms<T>(list, type, {kind, 5, 37, true});
    AddNorms<T>(list, type, {kind, 1, 1, false});
    AddNorms<T>(list, type, {kind, 70, 264, true});
    AddNorms<T>(list, type, {kind, 70, 264, false});
  }
  AddElementwise<T>(list, type, {5, 37, 41, true});
  AddElementwise<T>(list, type, {1, 1, 1, false});
  AddElementwise<T>(list, type, {70, 264, 280, true});
  AddElementwise<T>(list, type, {70, 264, 264, false});
  list.Add(Name("FusedGelu", type, "70x264"), FusedGeluCase<T>, MatrixSize{70, 264, 264, true});
  list.Add(Name("AddColumnSums", type, "1100x9"), ColumnSumsCase<T>, MatrixSize{1100, 9, 9, true});
  AddRotation<T>(list, type, {2, 5, 3, 16, 1});
  AddRotation<T>(list, type, {1, 7, 2, 6, -1});
  AddTokens<T>(list, type, {3, 37, 24, 50, true});
  AddTokens<T>(list, type, {1, 1, 5, 1, false});
  AddTokens<T>(list, type, {5, 260, 8, 3000, false});
  AddLogits<T>(list, type, {5, 257, 257});
  AddLogits<T>(list, type, {2, 3, 8});
  AddLogits<T>(list, type, {3, 5003, 5008});
}

}  // namespace

std::vector<NamedCase> SmallCases() {
  CaseList list(true);
  AddSmall<float>(list, "float");
  AddSmall<Bfloat16>(list, "bf16");
  AddLogits<float>(list, "float", {300, 3, 8});
  AddAttention<float>(list, "float", {1, 70, 2, 1, 64});
  AddAttention<float>(list, "float", {2, 33, 1, 1, 128});
  AddAttention<float>(list, "float", {2, 1, 4, 2, 10});
  // On tensor cores but for the last: two tiles of queries, heads that share keys, padded heads.
  AddAttention<Bfloat16>(list, "bf16", {1, 130, 2, 1, 64});
  AddAttention<Bfloat16>(list, "bf16", {1, 70, 1, 1, 128});
  AddAttention<Bfloat16>(list, "bf16", {2, 1, 3, 3, 24});
  AddAttention<Bfloat16>(list, "bf16", {1, 34, 2, 1, 10});
  list.Add("Convert_1003", ConvertCase, int64_t{1003});
  list.Add("AddBuffer_1003", AddBufferCase, int64_t{1003});
  list.Add("Clip", ClipCase, std::vector<int64_t>{1, 131, 70000, 16});
  return list.Take();
}

std::vector<NamedCase> LargeCases() {
  CaseList list(false);
  constexpr const char* kType = "bf16";
  // Micro-batches of 4 × 1024 tokens of GPT-2 1.5B; attention of GPT-2 124M as well, and one of
  // larger heads that share keys.
  constexpr int64_t kRows = 4096;
  constexpr int64_t kCols = 1600;
  AddNorms<Bfloat16>(list, kType, {NormChoice::kLayer, kRows, kCols, true});
  AddNorms<Bfloat16>(list, kType, {NormChoice::kRms, kRows, kCols, true});
  AddElementwise<Bfloat16>(list, kType, {kRows / 2, 4 * kCols, 4 * kCols, true});
  AddTokens<Bfloat16>(list, kType, {4, 1024, kCols, 50257, true});
  for (const int64_t heads : {12, 25}) {
    AddAttention<Bfloat16>(list, kType, {8, 1024, heads, heads, 64});
  }
  AddAttention<Bfloat16>(list, kType, {2, 4096, 32, 8, 128});
  AddRotation<Bfloat16>(list, kType, {2, 4096, 40, 128, 1});
  AddLogits<Bfloat16>(list, kType, {1024, 50257, 50304});
  AddLogits<Bfloat16>(list, kType, {1024, 50257, 50257});
  constexpr int64_t kParameters = 1 << 25;
  list.Add("Convert_32Mi", ConvertCase, kParameters);
  list.Add("Clip_32Mi", ClipCase, std::vector<int64_t>{kParameters});
  return list.Take();
}

}  // namespace pipelag::cuda
