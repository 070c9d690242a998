#pragma once

#include "runtime/base/status.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <string>
#include <string_view>

namespace sluice::cli {

/// Where a command's results go: a table for people, and JSON for machines when --json was given ("-" or /dev/stdout = stdout; the table
/// then goes to stderr).
class Output {
public:
    explicit Output(std::string json_target)
        : json_target_(json_target == "/dev/stdout" ? "-" : std::move(json_target)) {}

    [[nodiscard]] std::FILE* people() const { return json_target_ == "-" ? stderr : stdout; }
    [[nodiscard]] bool wants_json() const { return !json_target_.empty(); }
    /// Writes nothing when no JSON was asked for. A file is complete or not there.
    Status write_json(const nlohmann::json& value) const;

private:
    std::string json_target_;
};

/// Replaces the file by `bytes` at once: whoever reads it sees the former content or all of the new one. What is no file of its own (a link, a
/// device, a pipe) is written as it is.
Status write_file(const std::string& path, std::string_view bytes);
/// What write_file() would be refused, as far as that can be told beforehand: `path` is a folder, or its own is missing or may not be written.
Status check_writable(const std::string& path);
/// All of a regular file of at most `most` bytes.
Result<std::string> read_file(const std::string& path, std::size_t most);

}  // namespace sluice::cli
