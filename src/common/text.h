// Text files of entries, one on each line, read and written on all threads. Torch-free.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <lacewing/executor.h>

namespace lacewing::text {

/// What is wrong with a file, and where: "line 12: ...".
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  FileError(std::int64_t line, const std::string& what)
      : std::runtime_error("line " + std::to_string(line) + ": " + what) {}
};

/// A message that quotes a file, whose bytes need not be text: those that are not printable ASCII as \xNN.
std::string printable(std::string_view message);

/// The bytes of a file.
std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::vector<std::string>& parts);

/// Walks through the numbers of one line. Every function throws FileError with the line's number.
class LineReader {
 public:
  LineReader(std::string_view line, std::int64_t number) : rest_(line), number_(number) {}

  std::int64_t integer(const char* what);
  double real(const char* what);
  /// An integer, also one that is written as a real number, such as 3.0.
  std::int64_t whole(const char* what);
  bool at_end();
  /// Throws unless the line has been read to its end.
  void finish();
  [[noreturn]] void fail(const std::string& what) const { throw FileError(number_, what); }
  std::int64_t number() const { return number_; }

 private:
  std::string_view token(const char* what);

  std::string_view rest_;
  std::int64_t number_;
};

/// Takes lines off the front of a text, counting them.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  /// The next line, without its end.
  std::optional<std::string_view> next();
  /// The next line with something on it that does not begin with `comment`.
  std::optional<LineReader> next_entry(char comment);
  std::string_view rest() const { return rest_; }
  std::int64_t number() const { return number_; }  ///< of the line that was taken last

 private:
  std::string_view rest_;
  std::int64_t number_ = 0;
};

/// Throws where a line announces more entries than the bytes behind it can hold.
void check_announced(std::int64_t entries, std::int64_t bytes_of_one, const LineReader& line, const Lines& rest);

/// A text cut at ends of lines into parts that depend on its length alone, and the entries that each holds.
class Entries {
 public:
  Entries(const Lines& lines, char comment, const CpuExecutor& executor);

  std::int64_t count() const { return first_entry_.back(); }
  std::int64_t lines() const { return first_line_.back(); }
  /// Calls read(reader, e) for every entry e; the error of the first damaged line is thrown.
  void each(const std::function<void(LineReader&, std::int64_t)>& read, const CpuExecutor& executor) const;

 private:
  std::vector<std::string_view> parts_;
  std::vector<std::int64_t> first_entry_, first_line_;
  char comment_;
};

/// Appends numbers to a line: integers, and reals as the shortest text that reads back the same.
void append(std::string& text, std::int64_t value);
void append(std::string& text, double value);
void append(std::string& text, float value);

/// Text that is made in parts of entries, in their order.
std::vector<std::string> written(std::int64_t count, const std::function<void(std::string&, std::int64_t)>& write,
                                 const CpuExecutor& executor);

}  // namespace lacewing::text
