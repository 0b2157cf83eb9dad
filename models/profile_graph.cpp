// PipeDream's profiles: a graph of operators, read and put in one order.
#include <map>
#include <optional>
#include <queue>

#include "models/file.h"
#include "models/profile.h"
#include "models/profile_text.h"

namespace pipelag {
namespace {

struct Node {
  NetworkPart part;
  int64_t number = 0;  ///< that its name ends in
  size_t line = 0;
  bool input = false;  ///< by its description
  std::vector<size_t> next;
  int needs = 0;  ///< edges into it
};

class GraphReader {
 public:
  explicit GraphReader(const std::filesystem::path& file) : file_(file) {}

  std::vector<Node> Read() {
    const std::string text = ReadFile(file_);
    size_t number = 0;
    for (const std::string_view line : SplitAt(text, "\n")) {
      const TextPlace place{file_, ++number};
      if (Trimmed(line).empty()) continue;
      const std::vector<std::string_view> parts = SplitAt(line, " -- ");
      if (line[0] == '\t') {
        if (parts.size() != 2) place.Fail("expected an edge, as in 'node4 -- node5'");
        edges_.push_back({std::string(Trimmed(parts[0])), std::string(Trimmed(parts[1])), number});
      } else {
        AddNode(place, parts);
      }
    }
    if (nodes_.empty()) throw Error(fmt::format("{}: holds no nodes", file_.string()));
    for (const Edge& edge : edges_) AddEdge(edge);
    for (Node& node : nodes_) {
      if (node.needs > 0 || !node.input) continue;
      node.part.forward = node.part.backward = Nanoseconds{0};
      node.part.memory = {};
      node.part.layer = false;
    }
    return std::move(nodes_);
  }

 private:
  struct Edge {
    std::string from;
    std::string to;
    size_t line;
  };

  void AddNode(const TextPlace& place, const std::vector<std::string_view>& parts) {
    if (parts.size() < 3) {
      place.Fail("expected a node, as in 'node4 -- ReLU() -- forward_compute_time=1.0, …'");
    }
    Node node;
    const std::string name(Trimmed(parts[0]));
    node.line = place.line;
    node.input = Trimmed(parts[1]).starts_with("Input");
    node.number = NumberOf(name);
    node.part.name = fmt::format("{} {}", name, Trimmed(parts[1]).substr(0, kMostOfName));
    const std::map<std::string_view, std::string_view> fields = FieldsOf(place, parts[2]);
    const auto field = [&](std::string_view key, double scale) {
      const auto found = fields.find(key);
      if (found == fields.end()) place.Fail(fmt::format("{} is missing", key));
      return SumOf(place, key, found->second, scale);
    };
    constexpr double kMillisecond = 1e6;
    node.part.forward = Nanoseconds{field("forward_compute_time", kMillisecond)};
    node.part.backward = Nanoseconds{field("backward_compute_time", kMillisecond)};
    node.part.memory.activation = field("activation_size", 1);
    node.part.memory.weights = node.part.memory.gradients = field("parameter_size", 1);
    const auto [before, fresh] = index_.try_emplace(name, nodes_.size());
    if (!fresh) {
      place.Fail(
          fmt::format("{} was described in line {} already", name, nodes_[before->second].line));
    }
    nodes_.push_back(std::move(node));
  }

  static int64_t NumberOf(const std::string& name) {
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    if (digits >= name.size() || name.size() - digits > kMostDigits) {
      return std::numeric_limits<int64_t>::max();
    }
    return ParseInteger(std::string_view(name).substr(digits));
  }

  /// "key=value, key=value".
  static std::map<std::string_view, std::string_view> FieldsOf(const TextPlace& place,
                                                               std::string_view text) {
    std::map<std::string_view, std::string_view> fields;
    for (const std::string_view entry : SplitAt(text, ",")) {
      const size_t equals = entry.find('=');
      if (equals == std::string_view::npos) {
        place.Fail(fmt::format("'{}' is not of the form key=value", Trimmed(entry)));
      }
      fields[Trimmed(entry.substr(0, equals))] = Trimmed(entry.substr(equals + 1));
    }
    return fields;
  }

  static int64_t SumOf(const TextPlace& place, std::string_view key, std::string_view text,
                       double scale) {
    if (!text.starts_with('[')) return ReadQuantity(place, key, text, scale);
    if (!text.ends_with(']')) place.Fail(fmt::format("{}: '{}' has no ']'", key, text));
    int64_t sum = 0;
    for (const std::string_view entry : SplitAt(text.substr(1, text.size() - 2), ";")) {
      sum += ReadQuantity(place, key, entry, scale);
    }
    return sum;
  }

  void AddEdge(const Edge& edge) {
    const TextPlace place{file_, edge.line};
    const auto find = [&](const std::string& name) {
      const auto found = index_.find(name);
      if (found == index_.end()) place.Fail(fmt::format("there is no node called '{}'", name));
      return found->second;
    };
    const size_t from = find(edge.from);
    const size_t to = find(edge.to);
    nodes_[from].next.push_back(to);
    ++nodes_[to].needs;
  }

  static constexpr size_t kMostOfName = 40;
  static constexpr size_t kMostDigits = 15;

  const std::filesystem::path& file_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::map<std::string, size_t> index_;
};

/// Nodes in an order in which each stands behind what it needs.
std::vector<size_t> OrderOf(const std::filesystem::path& file, const std::vector<Node>& nodes) {
  using Key = std::pair<int64_t, size_t>;
  std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
  std::vector<int> missing;
  for (size_t i = 0; i < nodes.size(); ++i) {
    missing.push_back(nodes[i].needs);
    if (nodes[i].needs == 0) ready.emplace(nodes[i].number, i);
  }
  std::vector<size_t> order;
  while (!ready.empty()) {
    const size_t i = ready.top().second;
    ready.pop();
    order.push_back(i);
    for (const size_t next : nodes[i].next) {
      if (--missing[next] == 0) ready.emplace(nodes[next].number, next);
    }
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (missing[i] > 0) {
      TextPlace{file, nodes[i].line}.Fail(
          "the node needs its own result: the edges go round in a circle");
    }
  }
  return order;
}

}  // namespace

std::vector<NetworkPart> ReadPipeDreamProfile(const std::filesystem::path& file) {
  const std::vector<Node> nodes = GraphReader(file).Read();
  const std::vector<size_t> order = OrderOf(file, nodes);
  std::vector<size_t> place(nodes.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::vector<Bytes> change(order.size() + 1);  // of what passes a cut, by the part before it
  for (size_t i = 0; i < order.size(); ++i) {
    const Node& node = nodes[order[i]];
    size_t last = i;
    for (const size_t next : node.next) last = std::max(last, place[next]);
    change[i] += node.part.memory.activation;
    change[last] -= node.part.memory.activation;
  }
  std::vector<NetworkPart> parts;
  Bytes passing = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    passing += change[i];
    parts.push_back(nodes[order[i]].part);
    parts.back().memory.message = passing;
  }
  return parts;
}

}  // namespace pipelag
