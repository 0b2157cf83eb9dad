// Line charts as SVG, panel beside panel. Knows nothing of what the lines stand for.
#pragma once

#include <string>
#include <vector>

namespace pipelag {

struct PlotPoint {
  double x = 0;
  double y = 0;
  double least = 0;  ///< of the band drawn behind the line; equal to y for none
  double greatest = 0;
};

struct PlotLine {
  std::string label;  ///< lines of the same label have the same colour in every panel
  std::vector<PlotPoint> points;
};

struct PlotPanel {
  std::string title;
  std::vector<PlotLine> lines;  ///< drawn in this order, the last on top
};

/// All panels have the same axes, with round numbers at the ticks. `panels` has at least one line
/// with at least one point.
std::string SvgPlot(const std::vector<PlotPanel>& panels, const std::string& x_label,
                    const std::string& y_label);

}  // namespace pipelag
