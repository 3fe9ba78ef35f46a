//! Slots of a Redis Cluster, and hash tags that are spread evenly over them.

/// Number of slots in a Redis Cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: CRC16 (XMODEM) of its hash tag, which is the text in its first pair of braces, or else of the
/// whole key.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOTS
}

/// The first decimal number whose slot lies in part `part` of `parts` equal parts.
pub(super) fn tag_in(part: u16, parts: u16) -> String {
    let width = (SLOTS / parts.max(1)).max(1);
    // A part of 256 slots is hit within a few hundred tries; the bound only prevents an endless loop after a
    // programming error.
    let mut tags = (0..1_000_000_u32).map(|number| number.to_string());
    tags.find(|tag| slot_of(tag.as_bytes()) / width == part).unwrap_or_default()
}

fn hash_tag(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        rest.get(..rest.iter().position(|&byte| byte == b'}')?)
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn crc16(bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    bytes.iter().fold(0, |crc: u16, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"a{foo}b"), slot_of(b"foo"));
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
    }

    #[test]
    fn every_part_has_its_tag() {
        for part in 0..64 {
            assert_eq!(slot_of(tag_in(part, 64).as_bytes()) / 256, part);
        }
    }
}
