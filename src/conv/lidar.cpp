#include "conv/lidar.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace lacewing::conv {
namespace {

constexpr double kSensorHeight = 1.73;

/// Random numbers that do not depend on the platform's library (splitmix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  double uniform() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

/// A box that stands on the ground, turned about the vertical.
struct Box {
  double x, y, half_x, half_y, height, cosine, sine;
  LidarClass kind;
};

/// The share of a kind among the objects.
struct Kind {
  LidarClass what;
  double share;
};
constexpr Kind kKinds[] = {
    {LidarClass::vehicle, 0.45}, {LidarClass::pole, 0.25}, {LidarClass::facade, 0.2}, {LidarClass::vegetation, 0.1}};

void shape(Box& box, Random& random) {
  const double size[3] = {random.uniform(), random.uniform(), random.uniform()};
  const auto set = [&](double half_x, double half_y, double height) {
    box.half_x = half_x;
    box.half_y = half_y;
    box.height = height;
  };
  switch (box.kind) {
    case LidarClass::vehicle: return set(2.2, 0.9, 1.5);
    case LidarClass::pole: return set(0.12, 0.12, 5.0);
    case LidarClass::facade: return set(6.0 + 8.0 * size[0], 3.0 + 4.0 * size[1], 6.0 + 6.0 * size[2]);
    default: return set(0.8 + 1.5 * size[0], 0.8 + 1.5 * size[1], 1.0 + 4.0 * size[2]);
  }
}

/// Objects of each kind, spread evenly over distances and directions: what a scan sees of a kind varies with the seed,
/// but not so much that a street is all facade or has none.
std::vector<Box> scene(const LidarOptions& options, Random& random) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<Box> boxes;
  for (const Kind& kind : kKinds) {
    const auto count = static_cast<std::int64_t>(std::llround(kind.share * static_cast<double>(options.objects)));
    const double phase = random.uniform();
    for (std::int64_t i = 0; i < count; ++i) {
      const double rank = (static_cast<double>(i) + random.uniform()) / static_cast<double>(count);
      const double distance = 4.0 + std::pow(rank, 0.8) * options.range * 0.8;
      const double around = 2.0 * std::numbers::pi * (phase + kGolden * static_cast<double>(i));
      const double turn = 0.3 * random.uniform() + (random.uniform() < 0.5 ? 0.0 : std::numbers::pi / 2.0);
      Box box{
          distance * std::cos(around), distance * std::sin(around), 0, 0, 0, std::cos(turn), std::sin(turn), kind.what};
      shape(box, random);
      if (box.kind == LidarClass::facade && std::abs(box.y) < 9.0) {
        box.y = box.y < 0.0 ? -12.0 : 12.0;
      }
      // Something large beside the sensor would fill half of the scan.
      const bool large = box.kind == LidarClass::facade || box.kind == LidarClass::vegetation;
      if (std::hypot(box.x, box.y) >= box.half_x + (large ? 6.5 : 3.0)) {
        boxes.push_back(box);
      }
    }
  }
  return boxes;
}

struct Ray {
  double x, y, z;
};

/// Where the ray enters the box, or `nearest` where it does not before.
double entry(const Box& box, const Ray& ray, double nearest) {
  const double origin[3] = {-(box.cosine * box.x + box.sine * box.y), box.sine * box.x - box.cosine * box.y, 0.0};
  const double along[3] = {box.cosine * ray.x + box.sine * ray.y, box.cosine * ray.y - box.sine * ray.x, ray.z};
  const double low[3] = {-box.half_x, -box.half_y, -kSensorHeight};
  const double high[3] = {box.half_x, box.half_y, box.height - kSensorHeight};
  double from = 0.0;
  double to = nearest;
  for (int a = 0; a < 3; ++a) {
    if (std::abs(along[a]) < 1e-9) {
      if (origin[a] < low[a] || origin[a] > high[a]) {
        return nearest;
      }
      continue;
    }
    const double first = (low[a] - origin[a]) / along[a];
    const double second = (high[a] - origin[a]) / along[a];
    from = std::max(from, std::min(first, second));
    to = std::min(to, std::max(first, second));
  }
  return from < to && from > 0.5 ? from : nearest;
}

/// The height of the undulating ground.
double ground(double x, double y) {
  return 0.08 * std::sin(0.21 * x + 0.7) * std::sin(0.17 * y) + 0.05 * std::sin(0.05 * x - 0.04 * y);
}

/// Where a descending ray meets the ground; a few steps of a fixed point.
double ground_distance(const Ray& ray, double range) {
  if (ray.z >= 0.0) {
    return range;
  }
  double distance = kSensorHeight / -ray.z;
  for (int step = 0; step < 3; ++step) {
    const double reached = std::min(distance, range);
    distance = (kSensorHeight - ground(ray.x * reached, ray.y * reached)) / -ray.z;
  }
  return std::min(std::max(distance, 0.0), range);
}

/// 64 beams as on the HDL-64: an upper half with a third of a degree between beams, a lower one with half a degree.
double elevation(std::int64_t beam, std::int64_t beams) {
  const double upper = static_cast<double>(beams) / 2.0;
  const double b = static_cast<double>(beam);
  const double scale = 64.0 / static_cast<double>(beams);
  const double degrees = b < upper ? 2.0 - scale * b / 3.0 : 2.0 - scale * upper / 3.0 - scale * (b - upper) * 0.5;
  return degrees * std::numbers::pi / 180.0;
}

void shoot_beam(const LidarOptions& options, const std::vector<Box>& boxes, std::int64_t beam, LidarScan& scan) {
  constexpr double kReflection[] = {0.25, 0.6, 0.45, 0.35, 0.15};
  Random random(options.seed * 0x100000001b3ULL + static_cast<std::uint64_t>(beam) + 1);
  const double up = elevation(beam, options.beams);
  for (std::int64_t azimuth = 0; azimuth < options.azimuths; ++azimuth) {
    const double around = 2.0 * std::numbers::pi * static_cast<double>(azimuth) / static_cast<double>(options.azimuths);
    const Ray ray{std::cos(up) * std::cos(around), std::cos(up) * std::sin(around), std::sin(up)};
    double distance = ground_distance(ray, options.range);
    LidarClass kind = LidarClass::ground;
    for (const Box& box : boxes) {
      if (const double found = entry(box, ray, distance); found < distance) {
        distance = found;
        kind = box.kind;
      }
    }
    const bool returned = random.uniform() >= options.dropout;
    const double jitter = kind == LidarClass::vegetation ? 0.35 * std::abs(random.normal()) : 0.0;
    const double measured = distance + jitter + options.noise * random.normal();
    const double brightness = kReflection[static_cast<int>(kind)] + 0.1 * random.normal();
    if (returned && distance < options.range) {
      const double point[] = {ray.x * measured, ray.y * measured, ray.z * measured + kSensorHeight,
                              std::clamp(brightness, 0.0, 1.0)};
      for (const double value : point) {
        scan.points.push_back(static_cast<float>(value));
      }
      scan.classes.push_back(static_cast<std::int64_t>(kind));
    }
  }
}

}  // namespace

LidarScan synthetic_scan(const LidarOptions& options, const CpuExecutor& executor) {
  Random random(options.seed + 0x5851f42d4c957f2dULL);
  const std::vector<Box> boxes = scene(options, random);
  std::vector<LidarScan> beams(static_cast<std::size_t>(options.beams));
  executor.parallel_for(0, options.beams, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t beam = begin; beam < end; ++beam) {
      shoot_beam(options, boxes, beam, beams[static_cast<std::size_t>(beam)]);
    }
  });
  LidarScan all;
  for (const LidarScan& beam : beams) {
    all.points.insert(all.points.end(), beam.points.begin(), beam.points.end());
    all.classes.insert(all.classes.end(), beam.classes.begin(), beam.classes.end());
  }
  return all;
}

}  // namespace lacewing::conv
