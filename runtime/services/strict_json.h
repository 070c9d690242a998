#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

/// Reading JSON of a known form as it is parsed, for files from outside: what is not expected ends the parse at once,
/// so that neither depth nor size of what is not wanted costs anything. Internal to runtime/services.
namespace sluice {

/// Text from outside as part of a one-line message: quoted, without control characters, cut when long.
std::string quote(std::string_view text);

/// Refuses everything; a reader overrides what it expects. Callbacks return false to stop, after fail().
class StrictJsonHandler : public nlohmann::json_sax<nlohmann::json> {
public:
    bool null() override { return unexpected("null"); }
    bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
    bool number_integer(number_integer_t value) override { return unexpected(std::to_string(value)); }
    bool number_unsigned(number_unsigned_t value) override { return unexpected(std::to_string(value)); }
    bool number_float(number_float_t, const string_t& text) override { return unexpected(quote(text)); }
    bool string(string_t& value) override { return unexpected("the string " + quote(value)); }
    bool binary(binary_t&) override { return unexpected("binary data"); }
    bool start_object(std::size_t) override { return unexpected("an object"); }
    bool start_array(std::size_t) override { return unexpected("an array"); }
    bool key(string_t& name) override { return unexpected("the key " + quote(name)); }
    bool end_object() override { return true; }
    bool end_array() override { return true; }
    bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception&) override {
        return fail("no valid JSON at byte " + std::to_string(position) + ", near " + quote(token));
    }

    /// One line; empty when nothing was wrong.
    [[nodiscard]] const std::string& error() const { return error_; }

protected:
    bool fail(std::string message) {
        error_ = std::move(message);
        return false;
    }
    /// Tells what was found where something else should be.
    virtual bool unexpected(const std::string& found) = 0;

private:
    std::string error_;
};

/// Parses one JSON value that starts with '{' and fills all of `text` but for space around it. False: see error().
bool parse_json_object(std::span<const std::byte> text, StrictJsonHandler& handler);

}  // namespace sluice
