#include "traces/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "models/error.h"

namespace pipelag {
namespace {

constexpr double kWidth = 420;  // of a panel's frame
constexpr double kHeight = 320;
constexpr double kLeft = 64;
constexpr double kRight = 20;
constexpr double kTop = 36;
constexpr double kBottom = 56;
constexpr double kLegendLine = 20;
constexpr double kLegendWidth = 300;
/// Told apart by the colour-blind too (Okabe, Ito).
constexpr std::array<const char*, 8> kColours = {"#000000", "#d55e00", "#0072b2", "#009e73",
                                                 "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"};

struct Axis {
  double least = std::numeric_limits<double>::infinity();
  double greatest = -std::numeric_limits<double>::infinity();
  double tick = 1;

  void Include(double value) {
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  /// Widens to round numbers: 1, 2 or 5 times a power of ten apart.
  void Round() {
    constexpr double kTicks = 6;
    const double span = greatest > least ? greatest - least : std::max(std::abs(least), 1.0);
    const double rough = span / kTicks;
    const double power = std::pow(10.0, std::floor(std::log10(rough)));
    for (const double factor : {10.0, 5.0, 2.0, 1.0}) {
      if (factor * power >= rough) tick = factor * power;
    }
    least = std::floor(least / tick) * tick;
    greatest = std::max(std::ceil(greatest / tick) * tick, least + tick);
  }
  double Share(double value) const { return (value - least) / (greatest - least); }
};

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string TickText(double value) {
  if (std::abs(value) >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (std::abs(value) >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", std::abs(value) < 1e-12 ? 0.0 : value);
}

class Plot {
 public:
  Plot(const std::vector<PlotPanel>& panels, std::string x_label, std::string y_label)
      : panels_(panels), x_label_(std::move(x_label)), y_label_(std::move(y_label)) {
    for (const PlotPanel& panel : panels) {
      for (const PlotLine& line : panel.lines) {
        if (std::find(labels_.begin(), labels_.end(), line.label) == labels_.end()) {
          labels_.push_back(line.label);
        }
        for (const PlotPoint& point : line.points) {
          x_.Include(point.x);
          y_.Include(point.least);
          y_.Include(point.greatest);
        }
      }
    }
    CHECK(x_.least <= x_.greatest);
    x_.Round();
    y_.Round();
  }

  std::string Draw() {
    const auto count = static_cast<double>(panels_.size());
    const double width = count * (kLeft + kWidth + kRight);
    const double columns = std::max(1.0, std::floor((width - kLeft) / kLegendWidth));
    const double legend = std::ceil(static_cast<double>(labels_.size()) / columns) * kLegendLine;
    const double height = kTop + kHeight + kBottom + legend;
    svg_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width, height);
    for (size_t i = 0; i < panels_.size(); ++i) {
      left_ = kLeft + static_cast<double>(i) * (kLeft + kWidth + kRight);
      DrawPanel(panels_[i]);
    }
    for (size_t i = 0; i < labels_.size(); ++i) {
      const double column = std::fmod(static_cast<double>(i), columns);
      const double row = std::floor(static_cast<double>(i) / columns);
      const double x = kLeft + column * kLegendWidth;
      const double y = kTop + kHeight + kBottom + row * kLegendLine;
      svg_ += fmt::format(
          "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
          "stroke-width=\"3\"/>\n",
          x, y, x + 24, y, ColourOf(labels_[i]));
      Text(x + 32, y + 4, "start", labels_[i]);
    }
    return svg_ + "</svg>\n";
  }

 private:
  double X(double x) const { return left_ + kWidth * x_.Share(x); }
  double Y(double y) const { return kTop + kHeight * (1 - y_.Share(y)); }

  const char* ColourOf(const std::string& label) const {
    const auto place = std::find(labels_.begin(), labels_.end(), label) - labels_.begin();
    return kColours[static_cast<size_t>(place) % kColours.size()];
  }

  void Text(double x, double y, const char* anchor, const std::string& text) {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                        anchor, Escaped(text));
  }

  void Grid(double x1, double y1, double x2, double y2) {
    svg_ += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#dddddd\"/>\n", x1,
        y1, x2, y2);
  }

  void DrawPanel(const PlotPanel& panel) {
    const double bottom = kTop + kHeight;
    for (double x = x_.least; x <= x_.greatest + x_.tick / 2; x += x_.tick) {
      Grid(X(x), kTop, X(x), bottom);
      Text(X(x), bottom + 16, "middle", TickText(x));
    }
    for (double y = y_.least; y <= y_.greatest + y_.tick / 2; y += y_.tick) {
      Grid(left_, Y(y), left_ + kWidth, Y(y));
      Text(left_ - 6, Y(y) + 4, "end", TickText(y));
    }
    svg_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
        "stroke=\"#444444\"/>\n",
        left_, kTop, kWidth, kHeight);
    Text(left_ + kWidth / 2, kTop - 12, "middle", panel.title);
    Text(left_ + kWidth / 2, bottom + 36, "middle", x_label_);
    svg_ += fmt::format(
        "<text transform=\"translate({:.1f},{:.1f}) rotate(-90)\" text-anchor=\"middle\">{}"
        "</text>\n",
        left_ - 44, kTop + kHeight / 2, Escaped(y_label_));
    for (const PlotLine& line : panel.lines) DrawBand(line);
    for (const PlotLine& line : panel.lines) DrawLine(line);
  }

  void DrawBand(const PlotLine& line) {
    std::string points;
    for (const PlotPoint& point : line.points) {
      points += fmt::format("{:.1f},{:.1f} ", X(point.x), Y(point.greatest));
    }
    for (auto point = line.points.rbegin(); point != line.points.rend(); ++point) {
      points += fmt::format("{:.1f},{:.1f} ", X(point->x), Y(point->least));
    }
    svg_ += fmt::format("<polygon points=\"{}\" fill=\"{}\" opacity=\"0.15\"/>\n", points,
                        ColourOf(line.label));
  }

  void DrawLine(const PlotLine& line) {
    std::string points;
    for (const PlotPoint& point : line.points) {
      points += fmt::format("{:.1f},{:.1f} ", X(point.x), Y(point.y));
    }
    svg_ +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"/>\n",
                    points, ColourOf(line.label));
  }

  const std::vector<PlotPanel>& panels_;
  std::string x_label_;
  std::string y_label_;
  std::vector<std::string> labels_;
  Axis x_;
  Axis y_;
  double left_ = 0;
  std::string svg_;
};

}  // namespace

std::string SvgPlot(const std::vector<PlotPanel>& panels, const std::string& x_label,
                    const std::string& y_label) {
  return Plot(panels, x_label, y_label).Draw();
}

}  // namespace pipelag
