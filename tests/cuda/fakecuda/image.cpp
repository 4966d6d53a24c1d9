#include "image.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>
#include <string_view>

#include "funicular.h"
#include "settings.h"

namespace fake {

namespace {

constexpr unsigned FATBIN_MAGIC = 0xBA55ED50;
constexpr unsigned ELF_MACHINE_CUDA = 190;

Image refused(CUresult code, std::string log) { return {code, std::move(log), {}}; }

Image bad_ptx(size_t line, const std::string& what) {
    return refused(CUDA_ERROR_INVALID_PTX, "ptxas application ptx input, line " + std::to_string(line) + "; fatal   : " + what);
}

// --- PTX

// The text without comments; lines stay where they are.
std::string without_comments(std::string_view text) {
    std::string kept;
    for (size_t at = 0; at < text.size(); at++) {
        const std::string_view rest = text.substr(at);
        size_t skipped = 0;
        if (rest.starts_with("//")) skipped = std::min(rest.find('\n'), rest.size());
        if (rest.starts_with("/*")) skipped = std::min(rest.find("*/"), rest.size() - 2) + 2;
        if (skipped == 0) {
            kept += text[at];
            continue;
        }
        kept.append(static_cast<size_t>(std::count(rest.begin(), rest.begin() + static_cast<long>(skipped), '\n')), '\n');
        at += skipped - 1;
    }
    return kept;
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
    return text;
}

// The word behind a directive.
std::optional<std::string> directive(std::string_view ptx, std::string_view name) {
    const size_t at = ptx.find(name);
    if (at == std::string_view::npos) return {};
    const std::string_view rest = trimmed(ptx.substr(at + name.size()));
    const auto end = std::find_if(rest.begin(), rest.end(), [](unsigned char c) { return std::isspace(c) || c == ','; });
    return std::string(rest.begin(), end);
}

// The size of `.param .align 8 .b8 name[56]` or `.param .u64 name`.
std::optional<size_t> parameter_size(std::string_view text) {
    size_t bytes = 0;
    for (size_t at = text.find('.'); at != std::string_view::npos; at = text.find('.', at + 1)) {
        const bool is_type = at + 2 < text.size() && std::strchr("busf", text[at + 1]) && std::isdigit(static_cast<unsigned char>(text[at + 2]));
        if (is_type) bytes = std::stoul(std::string(text.substr(at + 2, 3))) / 8;
    }
    const size_t bracket = text.find('[');
    if (bracket != std::string_view::npos) bytes *= std::stoul("0" + std::string(text.substr(bracket + 1)));
    return bytes == 0 ? std::nullopt : std::optional(bytes);
}

// The sizes of what stands between an entry's parentheses.
std::optional<std::vector<size_t>> parameter_sizes(std::string_view text) {
    std::vector<size_t> sizes;
    while (!trimmed(text).empty()) {
        const size_t comma = std::min(text.find(','), text.size());
        const auto size = parameter_size(text.substr(0, comma));
        if (!size) return {};
        sizes.push_back(*size);
        text.remove_prefix(std::min(comma + 1, text.size()));
    }
    return sizes;
}

// Whether the driver is as new as the PTX: CUDA 11.x brought PTX 7.x, 12.x 8.x, 13.x 9.x.
bool is_understood(const std::string& version) {
    const int wanted = std::stoi("0" + version) * 10 + std::stoi("0" + version.substr(std::min(version.find('.') + 1, version.size())));
    const int major = settings().version / 1000 - 4, minor = settings().version % 1000 / 10;
    return wanted <= major * 10 + minor;
}

Image read_ptx(std::string_view source) {
    const std::string text = without_comments(source);
    const auto line_of = [&](size_t at) { return 1 + static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<long>(at), '\n')); };
    const auto version = directive(text, ".version"), target = directive(text, ".target");
    if (!version || !target) return bad_ptx(1, "Missing .version directive at start of file");
    if (!is_understood(*version))
        return refused(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "ptxas fatal   : Unsupported .version " + *version);
    if (!target->starts_with("sm_")) return bad_ptx(1, "Unknown .target " + *target);
    if (std::stoi("0" + target->substr(3)) > settings().capability)
        return refused(CUDA_ERROR_NO_BINARY_FOR_GPU, "ptxas fatal   : SM version specified by .target is higher than that of the device");
    if (std::count(text.begin(), text.end(), '{') != std::count(text.begin(), text.end(), '}'))
        return bad_ptx(line_of(text.size()), "Parsing error near '': syntax error");

    Image image;
    constexpr std::string_view ENTRY = ".entry";
    for (size_t at = text.find(ENTRY); at != std::string::npos; at = text.find(ENTRY, at + 1)) {
        const size_t open = text.find('(', at), close = text.find(')', at);
        if (open == std::string::npos || close == std::string::npos || close < open)
            return bad_ptx(line_of(at), "Parsing error near '.entry': syntax error");
        const auto sizes = parameter_sizes(std::string_view(text).substr(open + 1, close - open - 1));
        if (!sizes) return bad_ptx(line_of(open), "Parsing error near '(': syntax error");
        const std::string_view name = trimmed(std::string_view(text).substr(at + ENTRY.size(), open - at - ENTRY.size()));
        image.entries.emplace(name, *sizes);
    }
    return image;
}

// --- binaries

void add_entry(Image& image, std::string_view section) {
    constexpr std::string_view CODE = ".text.";
    if (section.starts_with(CODE)) image.entries.emplace(section.substr(CODE.size()), std::vector{sizeof(funicular_batch)});
}

Image read_elf(const unsigned char* bytes) {
    Elf64_Ehdr header;
    std::memcpy(&header, bytes, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != ELF_MACHINE_CUDA)
        return refused(CUDA_ERROR_INVALID_IMAGE, "");
    const auto section = [&](unsigned index) {
        Elf64_Shdr found;
        std::memcpy(&found, bytes + header.e_shoff + index * header.e_shentsize, sizeof found);
        return found;
    };
    Image image;
    const auto names = section(header.e_shstrndx);
    for (unsigned index = 0; index < header.e_shnum; index++)
        add_entry(image, reinterpret_cast<const char*>(bytes + names.sh_offset + section(index).sh_name));
    return image;
}

Image read_fatbin(const unsigned char* bytes) {
    uint16_t header_size;
    uint64_t size;
    std::memcpy(&header_size, bytes + 6, sizeof header_size);
    std::memcpy(&size, bytes + 8, sizeof size);
    const std::string_view all(reinterpret_cast<const char*>(bytes) + header_size, size);
    Image image;
    for (size_t at = all.find(".text."); at != std::string_view::npos; at = all.find(".text.", at + 1))
        add_entry(image, std::string_view(all.data() + at, std::min(all.find('\0', at), all.size()) - at));
    return image;
}

}  // namespace

Image read_image(const void* image) {
    const auto* bytes = static_cast<const unsigned char*>(image);
    unsigned magic;
    std::memcpy(&magic, bytes, std::min(sizeof magic, strnlen(static_cast<const char*>(image), sizeof magic)));
    if (std::memcmp(bytes, ELFMAG, SELFMAG) == 0) return read_elf(bytes);
    if (magic == FATBIN_MAGIC) return read_fatbin(bytes);
    const std::string_view text(static_cast<const char*>(image));
    const bool is_text = std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 9 && c < 127; });
    if (!is_text || text.find(".version") == std::string_view::npos) return refused(CUDA_ERROR_INVALID_IMAGE, "");
    return read_ptx(text);
}

}  // namespace fake
