/* What a call's sizes and options mean: the keys a row may attend, the operations that takes. */
#include "common.h"

#include <algorithm>

namespace bench
{

namespace
{

/* Options that a shape may name, as `word` or `word=number`; whether it was one. */
bool take_option(Shape &shape, const std::string &text, const std::string &flag)
{
    const size_t equals = text.find('=');
    const std::string word = text.substr(0, equals);
    const bool valued = equals != std::string::npos;
    auto value = [&] { return number(text.substr(equals + 1), flag); };
    if (!valued && word == "causal")
        shape.causal = true;
    else if (!valued && word == "bias")
        shape.biased = true;
    else if (!valued && word == "mask4")
        shape.holes = true;
    else if (!valued && word == "alibi")
        shape.alibi = true;
    else if (!valued && word == "sink")
        shape.sink = true;
    else if (!valued && word == "each")
        shape.each = true;
    else if (valued && word == "window")
        shape.window = value();
    else if (valued && word == "softcap")
        shape.softcap = static_cast<double>(value());
    else if (valued && word == "interval")
        shape.prefix = value();
    else if (valued && word == "varlen" && shape.B == 1)
        shape = packed(shape, value());
    else
        return false;
    return true;
}

} // namespace

Shape parse_shape(const std::string &text)
{
    const std::string flag = "--shape=" + text;
    const std::string expected =
        ": expected NAME:B,Hq,Hkv,Lq,Lk,D[,Dv][,option]..., options being causal, window=N, "
        "interval=N, softcap=N, alibi, sink, mask4 or bias, and with B = 1 varlen=N, each";
    const size_t colon = text.find(':');
    if (colon == std::string::npos || colon == 0)
        refuse(flag + expected);
    const std::vector<std::string> parts = split(text.substr(colon + 1), ',');
    size_t sizes = 0;
    while (sizes < parts.size() && !parts[sizes].empty() &&
           parts[sizes].find_first_not_of("0123456789") == std::string::npos)
        sizes++;
    if (sizes != 6 && sizes != 7)
        refuse(flag + expected);
    Shape shape;
    shape.name = text.substr(0, colon);
    int64_t *const fields[] = {&shape.B,  &shape.Hq, &shape.Hkv, &shape.Lq,
                               &shape.Lk, &shape.D,  &shape.Dv};
    for (size_t i = 0; i < sizes; i++)
        *fields[i] = number(parts[i], flag);
    if (sizes == 6)
        shape.Dv = shape.D;
    for (size_t i = sizes; i < parts.size(); i++)
        if (!take_option(shape, parts[i], flag))
            refuse(flag + expected);
    if (shape.Hq % shape.Hkv)
        refuse(flag + ": Hq is not a multiple of Hkv");
    if (shape.holes + shape.biased + (shape.sequences() > 0) > 1 ||
        (shape.sequences() && shape.prefix))
        refuse(flag + ": at most one of mask4, bias and varlen, and no interval with varlen");
    return shape;
}

bool Shape::hole(int64_t b, int64_t h, int64_t i, int64_t j) const
{
    return random_bits(static_cast<uint64_t>(((b * Hq + h) * Lq + i) * Lk + j)) % 10 == 0;
}

Keys Shape::keys_of(int64_t query) const
{
    const int64_t place = query + (causal ? Lk - Lq : 0);
    Keys keys{0, Lk - masked};
    if (causal)
        keys.last = std::min(keys.last, place + 1);
    if (window >= 0) {
        keys.first = std::max(keys.first, place - window);
        keys.last = std::min(keys.last, place + window + 1);
    }
    if (prefix > 0)
        keys.last = std::min(keys.last, std::max(prefix, query + 1));
    keys.last = std::max(keys.last, keys.first);
    return keys;
}

int64_t Shape::sequences() const
{
    return starts.empty() ? 0 : static_cast<int64_t>(starts.size()) - 1;
}

Shape Shape::sequence(int64_t b) const
{
    Shape one = *this;
    one.starts.clear();
    one.Lq = one.Lk = starts[static_cast<size_t>(b) + 1] - starts[static_cast<size_t>(b)];
    return one;
}

double Shape::attention_flops() const
{
    double flops = 0;
    for (int64_t b = 0; b < sequences(); b++)
        flops += sequence(b).attention_flops();
    if (sequences())
        return flops;
    int64_t pairs = 0;
    for (int64_t i = 0; i < Lq; i++) {
        const Keys keys = keys_of(i);
        pairs += B * Hq * (keys.last - keys.first);
        if (!holes)
            continue;
        for (int64_t head = 0; head < B * Hq; head++)
            for (int64_t j = keys.first; j < keys.last; j++)
                pairs -= hole(head / Hq, head % Hq, i, j);
    }
    return 2.0 * static_cast<double>(D + Dv) * static_cast<double>(pairs);
}

double Shape::attention_bytes() const
{
    return 4.0 * static_cast<double>(B * (Hkv * Lk + Hq * Lq) * (D + Dv));
}

Shape packed(Shape shape, int64_t count)
{
    const uint64_t most = static_cast<uint64_t>(shape.Lq);
    shape.starts.push_back(0);
    for (int64_t b = 0; b < count; b++)
        shape.starts.push_back(shape.starts.back() + 1 +
                               static_cast<int64_t>(random_bits(static_cast<uint64_t>(b)) % most));
    shape.Lq = shape.Lk = shape.starts.back();
    return shape;
}

} // namespace bench
