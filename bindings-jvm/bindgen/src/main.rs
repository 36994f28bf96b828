//! Generates the Kotlin layer from the built library, for the Maven build.

fn main() {
    uniffi::uniffi_bindgen_main();
}
