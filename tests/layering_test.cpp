// The floor plan as a test: which folders there are, who may include whom, and that every file says
// what it is for. Reads the sources as text; knows nothing of what they do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

namespace {

namespace fs = std::filesystem;

const fs::path& Root() {
  static const fs::path root = PIPELAG_SOURCE_DIR;
  return root;
}

/// The rooms that each room may include besides itself.
const std::map<std::string, std::set<std::string>>& Floors() {
  static const std::map<std::string, std::set<std::string>> floors = {
      {"models", {}},
      {"traces", {"models"}},
      {"sim", {"models", "traces"}},
      {"runtime", {"models", "traces"}},
      {"tools", {"models", "traces", "sim", "runtime"}},
      {"tests", {"models", "traces", "sim", "runtime", "tools"}},
  };
  return floors;
}

/// C++ sources of a room, relative to the root.
std::vector<fs::path> SourcesOf(const std::string& room) {
  std::vector<fs::path> sources;
  for (auto entry = fs::recursive_directory_iterator(Root() / room);
       entry != fs::recursive_directory_iterator(); ++entry) {
    if (entry->is_directory() && entry->path().filename() == "node_modules") {
      entry.disable_recursion_pending();
    }
    const fs::path extension = entry->path().extension();
    if (extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh") {
      sources.push_back(fs::relative(entry->path(), Root()));
    }
  }
  std::sort(sources.begin(), sources.end());
  return sources;
}

std::vector<std::string> LinesOf(const fs::path& source) {
  std::ifstream in(Root() / source);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// What is included in quotes, in order.
std::vector<std::string> IncludesOf(const fs::path& source) {
  static const std::regex include("^\\s*#\\s*include\\s*\"([^\"]*)\".*");
  std::vector<std::string> included;
  for (const std::string& line : LinesOf(source)) {
    std::smatch match;
    if (std::regex_match(line, match, include)) included.push_back(match[1]);
  }
  return included;
}

TEST(Layering, IncludesAreRootRelativeAndGoDownwards) {
  for (const auto& [room, below] : Floors()) {
    for (const fs::path& source : SourcesOf(room)) {
      for (const std::string& included : IncludesOf(source)) {
        EXPECT_TRUE(fs::is_regular_file(Root() / included))
            << source << " includes \"" << included << "\", which is not a path from the root";
        const std::string from = fs::path(included).begin()->string();
        EXPECT_TRUE(from == room || below.contains(from))
            << source << " is in " << room << ", which may not include " << included;
      }
    }
  }
}

TEST(Layering, OnlyToolsKnowTheCommandLine) {
  for (const char* room : {"models", "traces", "sim", "runtime"}) {
    for (const fs::path& source : SourcesOf(room)) {
      for (const std::string& line : LinesOf(source)) {
        for (const char* word :
             {"std::cout", "std::cerr", "std::exit(", "fmt::print(", "boost/program_options"}) {
          EXPECT_EQ(line.find(word), std::string::npos) << source << ": " << line;
        }
      }
    }
  }
}

/// All but runtime/cuda/ is built and tested where there is no CUDA.
TEST(Layering, OnlyTheGpuBackendKnowsCuda) {
  static const std::regex kCuda(R"(^\s*#\s*include\s*<(cuda|cublas|nccl|nv).*)");
  int inside = 0;
  for (const auto& [room, below] : Floors()) {
    for (const fs::path& source : SourcesOf(room)) {
      const bool backend = source.string().starts_with("runtime/cuda/");
      if (source.string().starts_with("tests/")) continue;
      for (const std::string& line : LinesOf(source)) {
        if (!std::regex_match(line, kCuda)) continue;
        EXPECT_TRUE(backend) << source << ": " << line;
        ++inside;
      }
      if (backend) continue;
      for (const std::string& included : IncludesOf(source)) {
        EXPECT_FALSE(included.starts_with("runtime/cuda/")) << source << ": " << included;
      }
    }
  }
  EXPECT_GT(inside, 0);
}

TEST(Layering, HeavyHeadersStayInSources) {
  for (const auto& [room, below] : Floors()) {
    for (const fs::path& source : SourcesOf(room)) {
      if (source.extension() != ".h" || room == "tests") continue;
      for (const std::string& line : LinesOf(source)) {
        for (const char* header : {"<boost/", "<nlohmann/json.hpp>"}) {
          EXPECT_EQ(line.find(header), std::string::npos) << source << ": " << line;
        }
      }
    }
  }
}

/// A source may leave it to its own header, which it then includes first.
bool OpensWithAComment(const fs::path& source) {
  const std::vector<std::string> lines = LinesOf(source);
  if (lines.empty()) return false;
  if (lines[0].starts_with("//")) return true;
  fs::path header = source;
  header.replace_extension(".h");
  return source.extension() != ".h" && lines[0] == "#include \"" + header.string() + "\"" &&
         OpensWithAComment(header);
}

TEST(Layering, EveryFileSaysWhatItIsFor) {
  for (const auto& [room, below] : Floors()) {
    for (const fs::path& source : SourcesOf(room)) {
      EXPECT_TRUE(OpensWithAComment(source)) << source << " does not open with a comment";
    }
  }
}

/// Two types of one name in two headers are one to the linker, which then takes one's templates for
/// the other.
TEST(Layering, NoTwoHeadersDefineATypeOfOneName) {
  static const std::regex kDefinition(
      R"(^(?:struct|class) (?:\[\[.*\]\] )?(\w+)(?: final)?(?: :.*)? \{.*)");
  static const std::regex kNamespace(R"(^namespace ([\w:]+) \{)");
  std::map<std::string, fs::path> homes;
  for (const auto& [room, below] : Floors()) {
    for (const fs::path& source : SourcesOf(room)) {
      if (source.extension() != ".h") continue;
      std::string space;
      for (const std::string& line : LinesOf(source)) {
        std::smatch match;
        if (std::regex_match(line, match, kNamespace)) space = match[1];
        if (!std::regex_match(line, match, kDefinition)) continue;
        const auto [home, fresh] = homes.try_emplace(space + "::" + match[1].str(), source);
        EXPECT_TRUE(fresh) << home->first << " stands in " << home->second << " and " << source;
      }
    }
  }
  EXPECT_GT(homes.size(), 100U);
}

TEST(Layering, TheTopLevelIsFixed) {
  const std::set<std::string> expected = {"CMakeLists.txt",
                                          "CMakePresets.json",
                                          "LICENSE",
                                          "README.md",
                                          "models",
                                          "runtime",
                                          "sim",
                                          "tests",
                                          "tools",
                                          "traces"};
  for (const fs::directory_entry& entry : fs::directory_iterator(Root())) {
    const std::string name = entry.path().filename();
    if (name == "build" || name.starts_with('.')) continue;  // ignored by git, or dot-files
    EXPECT_TRUE(expected.contains(name)) << name << " has no place at the top level";
  }
}

}  // namespace
