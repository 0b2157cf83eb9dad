// Files of tensors: what is written reads the same, and every kind of damage is refused by name.
#include "runtime/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/file.h"
#include "runtime/sha256.h"
#include "tests/reason.h"
#include "tests/runtime/scratch_folder.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

std::string FileOf(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string content(sizeof length, '\0');
  std::memcpy(content.data(), &length, sizeof length);
  return content + header + data;
}

class Safetensors : public testing::Test {
 protected:
  std::filesystem::path Written(const std::string& content) const {
    const std::filesystem::path file = folder_.path() / "some.safetensors";
    WriteFile(file, content);
    return file;
  }
  std::string Refusal(const std::string& content) const {
    try {
      const SafetensorsFile file(Written(content));
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("some.safetensors"));
      return error.what();
    }
    return "";
  }

  ScratchFolder folder_;
};

TEST_F(Safetensors, CutShortLaterAreNamed) {
  const std::vector<float> values(6, 1);
  const std::filesystem::path path = folder_.path() / "a.safetensors";
  const WrittenFile written = WriteSafetensors(
      path, {{.name = "one", .type = "F32", .shape = {6}, .values = values.data()}}, {});
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, static_cast<uintmax_t>(written.bytes - 4));
  std::vector<float> read(6);
  EXPECT_THAT(ReasonOf([&] { file.Read("one", {6}, false, read.data()); }),
              HasSubstr("a.safetensors: has been cut short"));
}

TEST_F(Safetensors, ReadWhatWasWritten) {
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};  // (2, 3)
  const std::vector<double> one = {0.1};
  const std::vector<float> nothing;
  const std::filesystem::path path = folder_.path() / "a.safetensors";
  const WrittenFile written =
      WriteSafetensors(path,
                       {{.name = "plain", .type = "F32", .shape = {2, 3}, .values = matrix.data()},
                        {.name = "turned",
                         .type = "F32",
                         .shape = {3, 2},
                         .values = matrix.data(),
                         .transposed = true},
                        {.name = "empty", .type = "F32", .shape = {0}, .values = nothing.data()},
                        {.name = "number", .type = "F64", .shape = {}, .values = one.data()}},
                       {{"step", "7"}});
  const std::string content = ReadFile(path);
  EXPECT_EQ(written.bytes, static_cast<int64_t>(content.size()));
  EXPECT_EQ(written.sha256, Sha256(content));
  uint64_t header = 0;
  std::memcpy(&header, content.data(), sizeof header);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_EQ(content[8], '{');

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("step"), "7");
  EXPECT_EQ(file.tensors().size(), 4u);
  std::vector<float> read(6);
  file.Read("plain", {2, 3}, false, read.data());
  EXPECT_EQ(read, matrix);
  file.Read("turned", {2, 3}, true, read.data());
  EXPECT_EQ(read, matrix);
  file.Read("turned", {3, 2}, false, read.data());
  EXPECT_EQ(read, (std::vector<float>{1, 4, 2, 5, 3, 6}));
  double number = 0;
  file.Read("number", {}, &number);
  EXPECT_EQ(number, 0.1);
}

TEST_F(Safetensors, OthersHeadersAreUnderstood) {
  // Spaces, any order, data that is not aligned.
  const SafetensorsFile file(Written(
      FileOf(R"({"b":{"shape":[2],"data_offsets":[1,9],"dtype":"F32"}, "a" : {"dtype":"U8",)"
             R"("shape":[1],"data_offsets":[0,1]}, "__metadata__":{"format":"pt"}}   )",
             std::string(9, '\0'))));
  EXPECT_EQ(file.At("b").size, 8);
  std::vector<float> values(2, 1.0f);
  file.Read("b", {2}, false, values.data());
  EXPECT_EQ(values, std::vector<float>(2, 0.0f));
}

TEST_F(Safetensors, WrongTensorIsNamed) {
  const std::vector<float> values(6);
  const std::filesystem::path path = folder_.path() / "a.safetensors";
  WriteSafetensors(path, {{.name = "w", .type = "F32", .shape = {2, 3}, .values = values.data()}},
                   {});
  const SafetensorsFile file(path);
  std::vector<float> to(6);
  const auto reason = [&](const std::string& name, const std::vector<int64_t>& shape) {
    try {
      file.Read(name, shape, false, to.data());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(reason("v", {2, 3}), HasSubstr("a.safetensors: holds no tensor v"));
  EXPECT_THAT(reason("w", {3, 2}),
              HasSubstr("a.safetensors: tensor w is F32 [2, 3], but F32 [3, 2] is needed"));
  double number = 0;
  EXPECT_THROW(file.Read("w", {2, 3}, &number), Error);
}

struct Damage {
  const char* header;
  size_t data;
  const char* expected;
};

TEST_F(Safetensors, DamageIsRefusedByName) {
  const std::vector<Damage> cases = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12, "tensor b: begins at byte 4 of the data, within the one before it"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "tensor b: begins at byte 8 of the data, behind a hole of 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "behind a hole of 4"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7,
       "tensor a: ends at byte 8 of the data, but there are only 7"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 10,
       "2 bytes behind the last tensor"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
       "tensor a: F32 [3] takes 12 bytes, but it has 8"},
      {R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8, "tensor a: dtype F33"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "tensor a: ends at 0"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "tensor a: its shape"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8,
       "tensor a: shape [4294967296, 4294967296] is too large"},
      {R"({"a":{"dtype":"F32","shape":[2],"offsets":[0,8]}})", 8, "tensor a: has no data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "tensor a: its data_offsets"},
      {R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", 8, "tensor a: its dtype"},
      {R"({"a":[]})", 0, "tensor a: is no object"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "the key \"a\" stands twice"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__: a is no string"},
      {R"([1])", 0, "is no JSON object"},
      {R"({"a":)", 0, "not valid JSON"}};
  for (const Damage& damage : cases) {
    EXPECT_THAT(Refusal(FileOf(damage.header, std::string(damage.data, 'x'))),
                HasSubstr(damage.expected))
        << damage.header;
  }
  EXPECT_THAT(Refusal("1234"), HasSubstr("4 bytes hold no header"));
  EXPECT_THAT(Refusal(""), HasSubstr("0 bytes hold no header"));
  EXPECT_THAT(Refusal(FileOf("{}", "").substr(0, 9)), HasSubstr("only 1 follow"));
  EXPECT_THAT(Refusal(std::string(16, '\xff')), HasSubstr("is no safetensors file"));
  EXPECT_EQ(Refusal(FileOf("{}", "")), "");
}

TEST_F(Safetensors, EveryCutIsRefused) {
  const std::vector<float> values = {1, 2, 3};
  const std::filesystem::path path = folder_.path() / "a.safetensors";
  WriteSafetensors(path, {{.name = "w", .type = "F32", .shape = {3}, .values = values.data()}}, {});
  const std::string whole = ReadFile(path);
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(Refusal(whole.substr(0, length)), "") << length;
  }
  EXPECT_NE(Refusal(whole + "x"), "");
}

}  // namespace
}  // namespace pipelag
