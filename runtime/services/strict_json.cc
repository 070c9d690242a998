#include "runtime/services/strict_json.h"

#include <algorithm>

namespace sluice {

std::string quote(std::string_view text) {
    constexpr std::size_t kMostBytes = 120;
    std::string out = "'";
    for (const char c : text.substr(0, kMostBytes)) {
        const auto byte = static_cast<unsigned char>(c);
        out += byte < 0x20 || byte == 0x7F ? '?' : c;
    }
    return out + (text.size() > kMostBytes ? "...'" : "'");
}

bool parse_json_object(std::span<const std::byte> text, StrictJsonHandler& handler) {
    const auto* begin = reinterpret_cast<const char*>(text.data());
    const char* end = begin + text.size();
    // The parser takes a zero byte for the end of its input, and skips a byte order mark.
    if (const char* zero = std::find(begin, end, '\0'); zero != end) {
        return handler.parse_error(static_cast<std::size_t>(zero - begin) + 1, "a zero byte",
                                   nlohmann::detail::parse_error::create(101, std::size_t{0}, "", nullptr));
    }
    const char* first =
        std::find_if(begin, end, [](char c) { return c != ' ' && c != '\t' && c != '\n' && c != '\r'; });
    if (first == end || *first != '{') {
        return handler.parse_error(static_cast<std::size_t>(first - begin) + 1, "where an object should start",
                                   nlohmann::detail::parse_error::create(101, std::size_t{0}, "", nullptr));
    }
    return nlohmann::json::sax_parse(begin, end, &handler);
}

}  // namespace sluice
