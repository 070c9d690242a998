#include "cli/json_output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <unistd.h>

namespace sluice::cli {

namespace {

namespace fs = std::filesystem;

Status file_error(const std::string& path, const char* what) {
    return invalid_argument(fmt::format("cannot {} {}: {}", what, path, std::generic_category().message(errno)));
}

Status refuse_directory(const std::string& path) {
    std::error_code error;
    return fs::is_directory(path, error) ? invalid_argument(fmt::format("cannot write {}: it is a directory", path))
                                         : ok_status();
}

// A device or pipe cannot be replaced, and a link would become a file itself, /dev/stdout too: these are written as they are.
bool written_in_place(const std::string& path) {
    std::error_code error;
    return fs::is_symlink(fs::symlink_status(path, error)) ||
           (fs::exists(path, error) && !fs::is_regular_file(path, error));
}

}  // namespace

Status Output::write_json(const nlohmann::json& value) const {
    if (!wants_json()) {
        return ok_status();
    }
    // Names from files need not be UTF-8; what is not becomes a replacement character rather than an exception.
    const std::string text = value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (json_target_ != "-") {
        return write_file(json_target_, text);
    }
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
        return file_error("standard output", "write JSON to");
    }
    return ok_status();
}

Status write_file(const std::string& path, std::string_view bytes) {
    SLUICE_RETURN_IF_ERROR(refuse_directory(path));
    if (written_in_place(path)) {
        std::ofstream stream(path, std::ios::binary);
        stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        return stream.flush() ? ok_status() : file_error(path, "write");
    }
    std::error_code error;
    const std::string temporary = fmt::format("{}.{}.new", path, ::getpid());
    {
        std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
        stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        if (!stream.flush()) {
            const Status status = file_error(path, "write");
            std::filesystem::remove(temporary, error);
            return status;
        }
    }
    std::filesystem::rename(temporary, path, error);
    if (error) {
        const Status status = invalid_argument(fmt::format("cannot write {}: {}", path, error.message()));
        std::filesystem::remove(temporary, error);
        return status;
    }
    return ok_status();
}

Status check_writable(const std::string& path) {
    SLUICE_RETURN_IF_ERROR(refuse_directory(path));
    std::error_code error;
    const bool in_place = written_in_place(path);
    if (in_place && fs::exists(path, error)) {
        return ::access(path.c_str(), W_OK) == 0 ? ok_status() : file_error(path, "write");
    }
    // A file is made beside the old one; or it is made where a link leads to.
    const fs::path to = in_place ? fs::path(path).parent_path() / fs::read_symlink(path, error) : fs::path(path);
    const fs::path folder = to.parent_path();
    return ::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0 ? ok_status() : file_error(path, "write");
}

Result<std::string> read_file(const std::string& path, std::size_t most) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
        return invalid_argument(fmt::format("cannot read {}: {}", path, error ? error.message() : "it is not a file"));
    }
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    if (error || size > most) {
        return invalid_argument(
            fmt::format("cannot read {}: {}", path,
                        error ? error.message() : fmt::format("{} bytes, at most {} make sense", size, most)));
    }
    std::ifstream stream(path, std::ios::binary);
    std::string bytes(size, '\0');
    stream.read(bytes.data(), static_cast<std::streamsize>(size));
    if (!stream || static_cast<std::uintmax_t>(stream.gcount()) != size) {
        return file_error(path, "read");
    }
    return bytes;
}

}  // namespace sluice::cli
